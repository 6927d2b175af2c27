"""Numbers as elements of the ring Z_2^64, where a uniform mask hides a value perfectly and cancels without rounding.

A float v becomes the integer round(v * 2^40) modulo 2^64, a ``uint64``, which wraps as the ring does. A sum over q
parties is accurate to q * 2^-41 plus the rounding of the result, if its true value lies within +-2^23 (`limit_for`).
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

FRACTION_BITS = 40
# two encoded values below this limit add up to less than 2^63
LIMIT = 2.0 ** (62 - FRACTION_BITS)

_SCALE = 2.0**FRACTION_BITS
# a sum that reaches this is decoded with the wrong sign
_CAPACITY = 2.0 ** (63 - FRACTION_BITS)


class RingOverflowError(ValueError):
    """A value too large for the ring."""


def limit_for(parties: int) -> float:
    """The limit for `encode` under which a sum over so many parties cannot wrap: 2^23 / parties, at most 2^22."""
    if parties < 1:
        raise ValueError(f"a sum over {parties} parties; at least 1 is needed")
    return min(LIMIT, _CAPACITY / parties)


def encode(values: ArrayLike, limit: float = LIMIT) -> NDArray[np.uint64]:
    """Encode (k,) float64 values as (k,) elements.

    Raises:
        RingOverflowError: some |value| >= ``limit``, which is at most 2^23.
        ValueError: a value is NaN.
    """
    numbers = np.asarray(values, dtype=np.float64)
    # NaN fails every comparison, so one test finds every bad value
    if not (np.maximum.reduce(np.abs(numbers), axis=None, initial=0.0) < limit <= _CAPACITY):
        _refuse(numbers, limit)
    return np.rint(numbers * _SCALE).astype(np.int64).view(np.uint64)


def decode(elements: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Decode (k,) elements to float64 values; elements from 2^63 on are negative numbers."""
    if elements.dtype != np.uint64:
        raise ValueError(f"elements of the ring are uint64, not {elements.dtype}")
    return elements.view(np.int64).astype(np.float64) * (1 / _SCALE)


def _refuse(numbers: NDArray[np.float64], limit: float) -> None:
    if not 0 < limit <= _CAPACITY:
        raise ValueError(f"limit {limit:g} is not in (0, {_CAPACITY:g}], what the ring can hold")
    flat = np.atleast_1d(numbers).ravel()
    missing = np.isnan(flat)
    if missing.any():
        raise ValueError(f"value {int(missing.argmax())} of {flat.size} is NaN; only finite numbers can be masked")
    worst = int(np.abs(flat).argmax())
    raise RingOverflowError(
        f"value {worst} of {flat.size} is {flat[worst]:g}; the ring takes values within +-{limit:g}, "
        f"so either the model diverges (lower the step) or the features need scaling"
    )
