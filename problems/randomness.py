"""All randomness of a run, addressed instead of drawn in sequence.

A stream is named by (seed, purpose, integers...), so that what a client draws depends on who it is and which round it
is in, never on the order in which messages happen to arrive or on which process serves it. `secret_normal` and
`draw_secretly` are the exceptions: what hides something must not follow from a seed that others know.
"""

import os
import zlib
from enum import StrEnum

import numpy as np
from jaxtyping import Float64, Int64
from scipy.special import ndtri


class Purpose(StrEnum):
    """The purposes of the algorithms' random streams. The words determine every result: never change one."""

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
    UNIFORM_POOL = "uniform pool"


def seed_sequence(seed: int, purpose: str, *keys: int) -> np.random.SeedSequence:
    """Return the seed of a stream.

    Args:
        seed: the run's, >= 0.
        purpose: what the stream is for: a member of `Purpose`, or any fixed word.
        keys: what else tells the stream from others, such as a client and a round; each >= 0.
    """
    words = (seed, zlib.crc32(purpose.encode()), *keys)
    if max(words) < 2**32 and min(words) >= 0:
        return np.random.SeedSequence(np.array(words, dtype=np.uint32))  # the same seed, made five times as fast
    return np.random.SeedSequence(words)


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """Return a generator of its own for each address.

    Args:
        seed: as of `seed_sequence`.
        purpose: as of `seed_sequence`.
        keys: as of `seed_sequence`.
    """
    return np.random.default_rng(seed_sequence(seed, purpose, *keys))


def secret_normal(count: int) -> Float64[np.ndarray, "{count}"]:
    """Standard normal numbers from the system's generator: nobody can repeat them, not even with the seed."""
    places = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(12)  # 52 bits: adding 0.5 is exact
    normal: np.ndarray = ndtri((places + 0.5) * 2.0**-52)
    return normal


def draw_secretly(count: int, rate: float) -> Int64[np.ndarray, "some"]:
    """Draw each of 0..count-1 with the same chance, independently, by the system's generator.

    Args:
        count: how many there are.
        rate: the chance, in (0, 1]; it is rounded down to a multiple of 2^-32.

    Returns:
        Those that were drawn, in order; there may be none.
    """
    words = np.frombuffer(os.urandom(4 * count), dtype=np.uint32)
    return np.flatnonzero(words < np.uint64(rate * 2.0**32))
