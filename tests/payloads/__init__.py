"""Tests of payloads and messages."""
