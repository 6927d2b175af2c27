"""The run config: its keys, its syntax, and the algorithm that a strategy's name selects."""
