"""Tests of the run config, the command line and what a run leaves."""
