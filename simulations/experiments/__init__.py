"""Experiments of papers: what a file says, the runs that follow from it, and their reports."""
