"""The run config: its keys, how they are written, and what a strategy's name stands for."""
