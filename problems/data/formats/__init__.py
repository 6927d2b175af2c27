"""Readers of data sets: one module for each kind of file, bundled set or hub."""
