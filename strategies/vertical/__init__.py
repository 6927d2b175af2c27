"""The server side of vertical runs: the parties' meeting before round 1, and the strategy that waits for all parties."""
