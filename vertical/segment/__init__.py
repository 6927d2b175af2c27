"""The parties' work between two messages of the server: sums, updates, full passes, evaluation."""
