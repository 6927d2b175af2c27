"""What keeps a client's numbers its own: the ring in which sums are masked, and the protocol of secure sums."""
