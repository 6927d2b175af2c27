"""The ServerApp and ClientApp that Flower starts, with run config, registry and run directory."""
