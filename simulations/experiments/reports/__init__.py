"""What a reproduction leaves: tables, claims, the figure and the page."""
