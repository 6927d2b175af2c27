"""Independent random streams, one a purpose, all from the one seed of a data specification."""

from __future__ import annotations

import zlib

import numpy as np


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """Return the generator of `purpose` (a fixed word) and `keys` (a client's number, say) under `seed`."""
    return np.random.default_rng(np.random.SeedSequence((seed, zlib.crc32(purpose.encode()), *keys)))
