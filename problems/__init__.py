"""The mathematics: objectives, samplers, models, data and metrics. Nothing here uses Flower's runtime."""
