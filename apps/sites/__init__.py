"""What a node holds of a run's data, and what it keeps of a run on its disk."""
