"""Attacks on vertical runs: what the parties learn of each other all the same."""
