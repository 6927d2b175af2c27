"""References to compare a federated run with: the same training on pooled data, without a federation."""
