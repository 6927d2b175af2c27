"""The directory of a run on the server's disk: its files, logs and pictures."""
