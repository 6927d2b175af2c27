"""The option ``--stack``: many clients trained in one batched computation, on arrays with a first axis of clients.

Shapes in this package: C clients, b samples in a batch, K local steps, d weights of a network.
"""
