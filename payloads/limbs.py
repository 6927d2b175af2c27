"""Sums of floats that are exact, whatever the order and the sizes of the terms, as sums of integers.

A float v between -2^84 and 2^84 becomes four integers l_0 to l_3 below 2^42, of v's sign, with
v = sum of l_j 2^(42 j - 84), rounded to a multiple of 2^-84. The integers of up to 2^21 clients add up in 64 bits.
Secure sums add integers without rounding and without a bound (``combined="total"``), so the sum is the same with and
without them.
"""

import numpy as np
from jaxtyping import Float64, Int64

LIMBS = 4
_BITS, _FRACTION = 42, 84
LARGEST = 2.0 ** (LIMBS * _BITS - _FRACTION)
"""The bound of the absolute value of a term."""


def split(values: Float64[np.ndarray, "k"]) -> Int64[np.ndarray, "4*k"]:
    """Return floats as integers that can be added, the four integers of the first float first.

    Raises:
        OverflowError: A value is not finite, or not below `LARGEST`.
    """
    values = np.asarray(values, np.float64).ravel()
    if not (np.abs(values) < LARGEST).all():  # also false for NaN
        raise OverflowError(f"got values that are not below {LARGEST:g}")
    limbs, rest = np.empty((len(values), LIMBS), np.int64), values.copy()
    for index in reversed(range(LIMBS)):
        unit = 2.0 ** (_BITS * index - _FRACTION)
        whole = np.trunc(rest / unit) if index else np.rint(rest / unit)
        limbs[:, index] = whole.astype(np.int64)
        rest -= whole * unit  # exact: both are multiples of rest's last bit
    return limbs.ravel()


def join(limbs: Int64[np.ndarray, "4*k"]) -> Float64[np.ndarray, "k"]:
    """Return the floats of integers from `split`, or of their sums, each rounded once."""
    one = 1 << _FRACTION
    rows = limbs.reshape(-1, LIMBS).tolist()
    return np.array([sum(limb << (_BITS * index) for index, limb in enumerate(row)) / one for row in rows], np.float64)
