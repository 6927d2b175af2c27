"""What a run leaves on the server's disk."""
