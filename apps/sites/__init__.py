"""A node's data in a run, and the files and caches that it keeps of a run."""
