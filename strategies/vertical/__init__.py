"""The server side of vertical runs: the parties' meeting, and the strategy that waits for all parties."""
