"""What a run is declared by: its keys, how they are written, and what a strategy's name stands for."""
