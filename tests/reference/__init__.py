"""Plain NumPy references of the algorithms, line for line from the papers, for comparisons in the tests."""
