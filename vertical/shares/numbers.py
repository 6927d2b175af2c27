"""Fixed-point numbers modulo 2^64, and random streams from seeds.

A number x with s fractional bits is the integer round(x 2^s) modulo 2^64. The weights have `WEIGHT + SHIFT` bits while
gradients are added, and `WEIGHT` bits in products with features. A score has `FEATURE + WEIGHT` bits. Only its value
modulo `PERIOD` (128) is known, since the truncated weights are exact modulo 2^`PHASE` only: `PHASE` + `SHIFT` = 64.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from jaxtyping import Float64, UInt64
from numpy.typing import NDArray

Words = NDArray[np.uint64]

FEATURE: Final = 13
WEIGHT: Final = 18
SHIFT: Final = 26
PHASE: Final = 64 - SHIFT
PERIOD: Final = 2.0 ** (PHASE - FEATURE - WEIGHT)
SLOPE: Final = WEIGHT + SHIFT - FEATURE
# a slope is a sum of products of public coefficients and dealt waves
WAVE: Final = 10
COEFFICIENT: Final = SLOPE - WAVE
MAX_WEIGHT: Final = 2.0 ** (62 - WEIGHT - SHIFT)
"""The bound of all weights, above which the truncation is wrong."""
# added to the weights before truncation, so they are positive
OFFSET: Final = np.uint64(1 << 62)
SEED_BYTES: Final = 32


def encode(values: Float64[np.ndarray, "*n"], bits: int) -> UInt64[np.ndarray, "*n"]:
    """Return the integers of real numbers.

    Args:
        values: The numbers.
        bits: The number of fractional bits.

    Raises:
        ValueError: A number is not finite, or does not fit into 63 bits.
    """
    scaled = np.rint(values * 2.0**bits)
    if not (np.abs(scaled) < 2.0**63).all():
        raise ValueError(f"numbers must be finite and within +-2^{63 - bits}")
    return scaled.astype(np.int64).view(np.uint64)


def decode(words: UInt64[np.ndarray, "*n"], bits: int) -> Float64[np.ndarray, "*n"]:
    """Return the real numbers of integers.

    Args:
        words: The integers.
        bits: The number of fractional bits.
    """
    return words.view(np.int64) / 2.0**bits


def add(shares: Sequence[Words]) -> Words:
    """Return the value of which the parties have these shares."""
    total: Words = np.sum(shares, axis=0, dtype=np.uint64)
    return total


class Stream:
    """Uniform integers below 2^64 from a seed: AES-256 in counter mode.

    Args:
        seed: The seed, `SEED_BYTES` bytes, of which each use needs a new one.
    """

    def __init__(self, seed: bytes) -> None:
        self._cipher = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()

    def draw(self, *shape: int) -> Words:
        """Return the stream's next integers."""
        count = int(np.prod(shape))
        return np.frombuffer(self._cipher.update(bytes(8 * count)), dtype=np.uint64).reshape(shape)
