"""Runs from Python, also in a notebook: data frames, arrays, networks and functions in, a run object out."""
