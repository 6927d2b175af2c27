"""The parts of a training round that every strategy uses. docs/architecture.md explains their dependencies."""
