"""A Flower app with its own model, data and client, and a strategy of florilegium."""
