"""Tests of the strategies' server side."""
