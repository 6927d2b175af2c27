"""The references: the same training with all data in one place."""
