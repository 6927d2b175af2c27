"""A Flower app with its own model and data, and FedX2 of florilegium."""
