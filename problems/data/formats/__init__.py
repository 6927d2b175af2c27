"""Readers of data sets: a module for each kind of file, for bundled data sets and for Hugging Face's hub."""
