"""Attacks on vertical runs, which show what parties can still learn about each other."""
