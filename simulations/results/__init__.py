"""Run directories read back, compared, and printed."""
