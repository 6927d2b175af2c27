"""What the parties do between two messages of the server: sums, updates, full passes, evaluation."""
