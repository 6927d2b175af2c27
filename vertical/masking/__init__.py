"""Masks that hide the terms of a sum: pairwise masks, and the paper's two trees."""
