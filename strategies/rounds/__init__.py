"""The parts of a round, which every strategy uses; docs/architecture.md says which uses which."""
