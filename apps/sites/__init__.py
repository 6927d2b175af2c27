"""A node's data and settings, the checks of its owner's demands, and the files that it stores of runs."""
