"""All randomness of a run, as independent streams of random numbers that are addressed by names and numbers.

The address of a stream is (seed, purpose, integers...). A client's draws therefore depend on the client and the round,
but not on the order of the messages or on the process that answers them. `secret_normal` and `draw_secretly` are the
exceptions: random numbers that hide data must not follow from a seed that is known to the server or to other sites.
"""

import os
import zlib
from enum import StrEnum

import numpy as np
from jaxtyping import Float64, Int64
from scipy.special import ndtri


class Purpose(StrEnum):
    """The purposes of the algorithms' random streams. Never change these words, since all results depend on them."""

    SAMPLE_CLIENTS = "sample clients"
    SAMPLES = "samples"
    POSITIVES = "positives"
    PARTNERS = "partners"
    POSITIVE_POOL = "positive pool"
    PARTNER_POOL = "partner pool"
    HISTORY = "history"
    INDEPENDENT_POSITIVES = "independent positives"
    INDEPENDENT_PARTNERS = "independent partners"
    TORCH = "torch"
    GRADIENT_CLIENTS = "gradient clients"
    REPLACEMENTS = "replacements"
    REFERENCE_NOISE = "reference noise"
    INDEPENDENT_SAMPLES = "independent samples"
    AUGMENTATION = "augmentation"


def seed_sequence(seed: int, purpose: str, *keys: int) -> np.random.SeedSequence:
    """Return the seed of a stream.

    Args:
        seed: The run's seed, >= 0.
        purpose: The purpose of the stream: a member of `Purpose`, or any fixed word.
        keys: Further numbers of the address, such as a client and a round; each >= 0.
    """
    words = (seed, zlib.crc32(purpose.encode()), *keys)
    if max(words) < 2**32 and min(words) >= 0:
        return np.random.SeedSequence(np.array(words, dtype=np.uint32))  # the same seed, made five times as fast
    return np.random.SeedSequence(words)


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """Return the random generator at an address.

    Args:
        seed: See `seed_sequence`.
        purpose: See `seed_sequence`.
        keys: See `seed_sequence`.
    """
    return np.random.default_rng(seed_sequence(seed, purpose, *keys))


def secret_normal(count: int) -> Float64[np.ndarray, "{count}"]:
    """Draw standard normal numbers from the system's generator. They do not follow from the run's seed."""
    levels = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(12)  # 52 bits: adding 0.5 is exact
    normal: np.ndarray = ndtri((levels + 0.5) * 2.0**-52)
    return normal


def draw_secretly(count: int, rate: float) -> Int64[np.ndarray, "some"]:
    """Draw each of 0..count-1 with the same chance, independently, from the system's generator.

    Args:
        count: The number of elements.
        rate: The chance, in (0, 1]; it is rounded down to a multiple of 2^-32.

    Returns:
        The drawn elements, ascending. May be empty.
    """
    words = np.frombuffer(os.urandom(4 * count), dtype=np.uint32)
    return np.flatnonzero(words < np.uint64(rate * 2.0**32))
