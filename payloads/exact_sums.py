"""Sums of floats that are exact over sites: each float travels as integers, so even secure sums add no rounding error.

A float is an integer times 2^-512, written in 32 digits of 32 bits, each with the float's sign. Sums of digits over up
to 2^24 sites stay below 2^56, so they fit into the elements of a secure sum.
"""

import math
from fractions import Fraction

import numpy as np
from jaxtyping import Float64, Int64

DIGITS = 32
"""The number of digits of a float."""
LARGEST = 1e150
"""The largest absolute value of a float."""
_BITS, _FRACTION = 32, 512


def to_digits(values: Float64[np.ndarray, "c"]) -> Int64[np.ndarray, "digits"]:
    """Return the digits of floats, the lowest digit first, one float after another.

    Args:
        values: Finite floats within +-`LARGEST`. Bits below 2^-512 are cut off.

    Example:
        >>> to_fractions(to_digits(np.array([0.1])) + to_digits(np.array([-3.0])))[0] == Fraction(0.1) - 3
        True
    """
    digits = np.zeros((len(values), DIGITS), dtype=np.int64)
    for row, value in zip(digits, values.tolist(), strict=True):
        mantissa, exponent = math.frexp(abs(value))
        whole = int(mantissa * 2**53)
        shift = exponent - 53 + _FRACTION
        whole = whole << shift if shift >= 0 else whole >> -shift
        sign = -1 if value < 0 else 1
        for index in range(DIGITS):
            row[index] = sign * ((whole >> (_BITS * index)) & (2**_BITS - 1))
    return digits.ravel()


def to_fractions(digits: Int64[np.ndarray, "digits"]) -> list[Fraction]:
    """Return the exact values of sums of digits."""
    rows = digits.reshape(-1, DIGITS).tolist()
    return [Fraction(sum(digit << (_BITS * index) for index, digit in enumerate(row)), 2**_FRACTION) for row in rows]
