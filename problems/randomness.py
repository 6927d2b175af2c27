"""All randomness of a run, addressed instead of drawn in sequence.

A stream is named by (seed, purpose, integers...), so that what a client draws depends on who it is and which round it
is in, never on the order in which messages happen to arrive or on which process serves it. `secret_normal` is the
exception: noise that hides something must not follow from a seed that others know.
"""

import os
import zlib
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
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
    """The seed of (seed, purpose, keys); the purpose is any fixed word."""
    words = (seed, zlib.crc32(purpose.encode()), *keys)
    if max(words) < 2**32 and min(words) >= 0:
        return np.random.SeedSequence(np.array(words, dtype=np.uint32))  # the same seed, made five times as fast
    return np.random.SeedSequence(words)


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """A separate generator for (seed, purpose, keys)."""
    return np.random.default_rng(seed_sequence(seed, purpose, *keys))


def secret_normal(count: int) -> NDArray[np.float64]:
    """(count,) standard normal numbers from the system's generator: nobody can repeat them, not even with the seed."""
    places = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(12)  # 52 bits: adding 0.5 is exact
    normal: NDArray[np.float64] = ndtri((places + 0.5) * 2.0**-52)
    return normal
