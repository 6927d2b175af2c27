"""A Flower app with a model and data of its own, and FedX2 of florilegium."""
