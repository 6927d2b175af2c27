"""The ServerApp and the ClientApp that Flower starts, the run config, the strategies' registry, and run directories."""
