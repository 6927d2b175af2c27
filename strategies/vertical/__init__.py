"""The server side of vertical runs, in which parties have different columns of the same rows and train together."""
