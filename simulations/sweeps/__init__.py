"""Sweeps over run-config keys: the plan, its trials on Ray Tune, and their standings."""
