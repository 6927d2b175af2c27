"""Numbers that hide in sums: the ring Z_2^64, pairwise masks, and the paper's two trees."""
