"""The arithmetic and the cryptography of secure sums, and the accounting of differential privacy."""
