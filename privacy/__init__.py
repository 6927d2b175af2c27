"""The arithmetic and cryptography of secure sums, and the accounting of differential privacy."""
