"""The engine of vertical federated learning: what the parties say to each other inside a segment, without Flower."""
