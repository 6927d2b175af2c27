"""Readers: from files, bundled sets and the hub to the rows of a data set, one module per kind."""
