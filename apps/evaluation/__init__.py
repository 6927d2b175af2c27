"""The measurement of a run's models at the server: metrics, the selection of a round, and final figures."""
