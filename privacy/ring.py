"""Numbers as elements of a ring Z_2^bits, in which a uniform mask hides a value perfectly and cancels without rounding.

A float v becomes the integer round(v * 2^fraction_bits) modulo 2^bits, stored as an unsigned NumPy integer, which wraps
like the ring. A sum of q values is accurate to q * 2^-(fraction_bits + 1) plus the rounding of the result, if each
value lies within `Ring.limit_for`.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray


class RingOverflowError(ValueError):
    """A value too large for the ring."""


@dataclass(frozen=True)
class Ring:
    """The ring and the quantisation of floats in it.

    Attributes:
        bits: The bits of an element.
        fraction_bits: The number of bits after the binary point.
    """

    bits: Literal[32, 64]
    fraction_bits: int

    @classmethod
    def fitting(cls, bits: Literal[32, 64], limit: float, terms: int) -> Self:
        """Return the finest ring in which a sum of bounded values cannot wrap.

        Args:
            bits: The bits of an element.
            limit: The largest absolute value of a term.
            terms: The number of terms.

        Raises:
            ValueError: The values are too many or too large for this many bits.
        """
        fraction_bits = bits - 1 - math.ceil(math.log2(limit * terms))
        if limit * terms * 2.0**fraction_bits + terms / 2 >= 2.0 ** (bits - 1):  # values may be rounded up
            fraction_bits -= 1
        # an element must have room for one value and its rounding
        if not 0 <= fraction_bits <= bits + 10:
            raise ValueError(f"sums of {terms} values within +-{limit:g} do not fit into {bits} bits")
        return cls(bits, fraction_bits)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The number type of an element."""
        return np.dtype(f"uint{self.bits}")

    @cached_property
    def capacity(self) -> float:
        """The smallest positive sum that `decode` would return with the wrong sign."""
        return 2.0 ** (self.bits - 1 - self.fraction_bits)

    def limit_for(self, terms: int) -> float:
        """Return the limit for `encode` under which a sum cannot wrap, at most half the capacity.

        Args:
            terms: The number of terms.
        """
        if terms < 1:
            raise ValueError(f"a sum over {terms} parties; at least 1 is needed")
        return self.capacity / max(terms, 2)

    def encode(self, values: ArrayLike, limit: float | None = None, *, weight: float = 1.0) -> NDArray[Any]:
        """Encode (k,) floats, times a weight, as (k,) elements.

        Args:
            values: The floats (k,).
            limit: The bound of the encoded values, at most `capacity`. None: half of the capacity.
            weight: The factor of all values.

        Raises:
            RingOverflowError: Some |value * weight| >= ``limit``.
            ValueError: A value is NaN.
        """
        unit, below = 2.0**self.fraction_bits, self.capacity / 2 if limit is None else limit
        with np.errstate(over="ignore", invalid="ignore"):  # such values are refused below
            scaled = np.multiply(values, weight * unit, dtype=np.float64)
        # NaN fails every comparison, so one test finds every bad value
        if not (np.maximum.reduce(np.abs(scaled), axis=None, initial=0.0) < below * unit <= self.capacity * unit):
            self._refuse(scaled / unit, below)
        return np.rint(scaled, out=scaled).astype(f"int{self.bits}").view(self.dtype)

    def decode(self, elements: NDArray[Any]) -> NDArray[np.float64]:
        """Decode (k,) elements to float64 values. Elements of the upper half are negative numbers."""
        if elements.dtype != self.dtype:
            raise ValueError(f"elements of the ring are {self.dtype}, not {elements.dtype}")
        return elements.view(f"int{self.bits}").astype(np.float64) * 2.0**-self.fraction_bits

    def _refuse(self, numbers: NDArray[np.float64], limit: float) -> None:
        if not 0 < limit <= self.capacity:
            raise ValueError(f"limit {limit:g} is not in (0, {self.capacity:g}], the range of the ring")
        flat = np.atleast_1d(numbers).ravel()
        missing = np.isnan(flat)
        if missing.any():
            raise ValueError(f"value {int(missing.argmax())} of {flat.size} is NaN; only finite numbers can be masked")
        worst = int(np.abs(flat).argmax())
        raise RingOverflowError(
            f"value {worst} of {flat.size} is {flat[worst]:g}, but a masked sum allows values within +-{limit:g}; "
            "lower learning-rate if the model diverges, otherwise scale the features"
        )
