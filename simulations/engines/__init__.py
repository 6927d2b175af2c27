"""The engines, each of which computes the same runs: in this process, in Ray workers, or in Flower's simulation."""
