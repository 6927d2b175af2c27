"""Which rows the parties have in common, and whether they hold them in the same order."""
