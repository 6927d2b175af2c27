"""Deliberate breaks of the product, and what tries whether the fast tests notice them: ``python -m tests.breaks``."""
