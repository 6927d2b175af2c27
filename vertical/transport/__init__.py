"""Connections between the parties of a segment: addresses, certificates, TLS, frames."""
