"""Plain NumPy references of the algorithms, line for line the papers, for the tests to compare against."""
