"""A Flower app with its own model and data, and FedX1 or FedX2 of florilegium."""
