"""Parties, the sites of vertical runs: each has different columns of the same rows, its own block and its limits."""
