"""The results of a reproduction: tables, claims, the figure and the page."""
