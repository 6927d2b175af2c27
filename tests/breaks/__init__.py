"""Deliberate breaks of the product, and a trial of whether the fast tests notice them: ``python -m tests.breaks``."""
