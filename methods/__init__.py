"""The algorithms themselves: pure functions over frozen records, one module a method."""
