"""A node's data and settings, the checks of its owner's demands, and its files of past runs."""
