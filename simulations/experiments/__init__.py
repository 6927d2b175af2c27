"""Experiments of papers: their files, their runs, and their reports."""
