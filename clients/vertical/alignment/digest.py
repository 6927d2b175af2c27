"""Do all parties hold the same rows in the same order? They compare salted digests of their row ids.

A digest tells whoever knows the salt whether a guessed list of ids is the right one, whole and in order; it tells
nothing about single ids. The server draws the salt for each run, and compares the digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

_LEAST_SALT = 16


def digest(ids: Sequence[str], salt: bytes) -> bytes:
    """32 bytes that stand for these ids in this order: SHA-256 over the salt, the number of ids, and each id, all
    with their lengths in front, so that no two lists are written alike.

    Ids are compared as they are: "7", "07" and "7 " differ. ValueError for a salt below 16 bytes, TypeError for an id
    that is no text.
    """
    if len(salt) < _LEAST_SALT:
        raise ValueError(f"a salt of {len(salt)} bytes; at least {_LEAST_SALT} random ones are needed")
    parts = [len(salt).to_bytes(8, "big"), salt, len(ids).to_bytes(8, "big")]
    for row, name in enumerate(ids):
        if not isinstance(name, str):
            raise TypeError(f"the id of row {row} is {type(name).__name__}; ids are text")
        written = name.encode("utf-8", "surrogatepass")
        parts += (len(written).to_bytes(8, "big"), written)
    return hashlib.sha256(b"".join(parts)).digest()
