"""One set of tests that every algorithm of the registry must pass."""
