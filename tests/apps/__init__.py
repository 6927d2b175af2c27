"""Tests of the run config, the command line and a run's files."""
