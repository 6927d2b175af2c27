"""The client half of every algorithm: NumPyClients that carry typed payloads."""
