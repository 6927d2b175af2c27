"""The mathematics: objectives, samplers, models, data and metrics. Knows nothing of Flower's runtime."""
