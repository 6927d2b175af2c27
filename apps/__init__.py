"""What Flower starts: ServerApp, ClientApp, run config, registry and artifacts."""
