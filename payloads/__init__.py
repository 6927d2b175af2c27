"""What travels between the two halves: typed records, and the settings both halves must agree on."""
