"""What travels between client and server: typed records, and the settings both must agree on."""
