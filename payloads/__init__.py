"""The messages between client and server: typed records, and the settings on which both must agree."""
