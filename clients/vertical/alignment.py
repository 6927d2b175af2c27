"""Do all parties hold the same rows in the same order? They compare salted digests of their row ids.

A digest tells whoever knows the salt whether a guessed list of ids is the right one, whole and in order; it tells
nothing about single ids. The salt is drawn for each run and goes to the parties only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

_LEAST_SALT = 16


class AlignmentError(ValueError):
    """Parties whose rows are not those of the others; ``parties`` names them."""

    def __init__(self, message: str, parties: Sequence[int]) -> None:
        super().__init__(message)
        self.parties = tuple(parties)


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


def check_digests(digests: Mapping[int, bytes], rows: Mapping[int, int]) -> None:
    """AlignmentError unless all parties have the same number of rows and the same digest.

    Named are the parties outside the largest group that agrees; of groups of one size, the one with the lowest party
    counts as right.
    """
    if set(digests) != set(rows) or not digests:
        raise ValueError(f"digests of parties {sorted(digests)} and row counts of parties {sorted(rows)}")
    groups: dict[tuple[int, bytes], list[int]] = {}
    for party in sorted(digests):
        groups.setdefault((rows[party], bytes(digests[party])), []).append(party)
    if len(groups) == 1:
        return
    agreed = max(groups.values(), key=len)  # the first of the largest, so the one with the lowest party
    others = [party for party in sorted(digests) if party not in agreed]
    right = rows[agreed[0]]
    if all(rows[party] == right for party in others):
        said = f"{_names(others)} the same number of rows, {right}, but other ids or another order"
    else:
        said = "; ".join(
            f"party {party} has {rows[party]} rows"
            + (" with other ids or in another order" if rows[party] == right else "")
            for party in others
        )
    raise AlignmentError(
        f"the parties' rows differ: {said}; {_names(agreed)} {right} rows. "
        f"Rows must be the same in the same order at all parties",
        others,
    )


def _names(parties: Sequence[int]) -> str:
    if len(parties) == 1:
        return f"party {parties[0]} has"
    return f"parties {', '.join(map(str, parties))} have"
