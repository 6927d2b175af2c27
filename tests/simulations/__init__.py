"""Tests of the engine, the references and the command line."""
