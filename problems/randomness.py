"""All randomness of a run, addressed instead of drawn in sequence.

A stream is named by (seed, purpose, integers...), so that what a client draws depends on who it is and which
round it is in, never on the order in which messages happen to arrive or on which process serves it.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream is for. Values are part of every result: never renumber, only append."""

    SAMPLE_CLIENTS = 1
    POSITIVES = 2
    PARTNERS = 3
    POSITIVE_POOL = 4
    PARTNER_POOL = 5
    HISTORY = 6
    INDEPENDENT_POSITIVES = 7
    INDEPENDENT_PARTNERS = 8
    SAMPLES = 9
    TORCH = 10


def stream(seed: int, purpose: Purpose, *keys: int) -> np.random.Generator:
    """A generator of its own for (seed, purpose, keys)."""
    return np.random.default_rng(np.random.SeedSequence((seed, int(purpose), *keys)))
