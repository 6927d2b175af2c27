"""The ServerApp and the ClientApp that Flower starts, with run config, registry and run directory."""
