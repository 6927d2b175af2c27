"""How a run's models are measured."""
