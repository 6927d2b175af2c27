"""Sums of floats over sites that lose no digit: a float as a row of small integers, which also secure sums can add.

A float is rounded to a multiple of 2^-120, and its magnitude written in `DIGITS` digits of 12 bits; each digit has the
float's sign. The digits of up to 2^19 sites add up in 32 bits, the smallest ring of a secure sum.
"""

import math
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
from jaxtyping import Int32, Integer

DIGITS = 20
_BITS, _FRACTION = 12, 120
LARGEST = 2.0 ** (DIGITS * _BITS - _FRACTION)
"""The limit of a float's magnitude, 2^120."""


def to_digits(values: Iterable[float | Fraction]) -> Int32[np.ndarray, "20*k"]:
    """Return the digits of floats, the lowest digit of the first float first.

    Raises:
        ValueError: A float is not finite, or its magnitude is `LARGEST` or more.
    """
    digits = list[int]()
    for value in values:
        number = Fraction(value) if math.isfinite(value) else Fraction(LARGEST)
        if abs(number) >= LARGEST:
            raise ValueError(f"got {value}, expected a number between -{LARGEST:g} and {LARGEST:g}")
        whole = min(round(abs(number) * 2**_FRACTION), 2 ** (DIGITS * _BITS) - 1)
        sign = 1 if number >= 0 else -1
        digits += [sign * ((whole >> (_BITS * index)) % 2**_BITS) for index in range(DIGITS)]
    return np.array(digits, dtype=np.int32)


def from_digits(digits: Integer[np.ndarray, "20*k"]) -> list[Fraction]:
    """Return the exact numbers of digits, or of sums of digits."""
    rows = digits.reshape(-1, DIGITS).tolist()
    return [Fraction(sum(digit << (_BITS * i) for i, digit in enumerate(row)), 2**_FRACTION) for row in rows]
