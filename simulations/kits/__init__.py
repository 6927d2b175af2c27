"""Startup kits: a folder for the SuperLink and for each site, written from one project file, and their commands."""
