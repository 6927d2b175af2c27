"""Tests that every algorithm of the registry must pass."""
