"""Tests of the server halves."""
