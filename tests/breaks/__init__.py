"""Deliberate mistakes in the product ("breaks"), with which ``python -m tests.breaks`` checks the fast tests.

The tests of a break must fail if its mistake is in the code.
"""
