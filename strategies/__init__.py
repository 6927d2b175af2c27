"""The server half of every algorithm: drop-in Flower strategies."""
