"""Masks that hide the terms of a sum: the ring Z_2^64, pairwise masks, and the paper's two trees."""
