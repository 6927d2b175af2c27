"""The parts of a round, which every strategy uses. docs/architecture.md explains their dependencies."""
