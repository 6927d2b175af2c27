"""Tests of what travels."""
