"""The one error that ends a segment, and its form on the wire."""

from __future__ import annotations

import struct

_CULPRIT = struct.Struct("<i")
# of the reason on the wire, in bytes
_LONGEST = 2000


class PartyError(RuntimeError):
    """A party's failure, known to every party of the segment.

    Attributes:
        party: index of the culprit; None where nobody in particular can be named.
        reason: what happened, in words.
    """

    def __init__(self, party: int | None, reason: str) -> None:
        super().__init__(party, reason)
        self.party = party
        self.reason = reason

    def __str__(self) -> str:
        return self.reason if self.party is None else f"party {self.party}: {self.reason}"

    def to_bytes(self) -> bytes:
        """Body of an ABORT frame; a reason of more than 2,000 bytes is cut."""
        reason = self.reason.encode(errors="replace")[:_LONGEST]
        return _CULPRIT.pack(-1 if self.party is None else self.party) + reason

    @classmethod
    def from_bytes(cls, body: bytes, parties: int) -> PartyError:
        """Read an ABORT's body; ValueError when it names no party of 0..parties-1.

        What cannot be printed, line breaks and escape sequences too, is spelt out: the words end up in logs.
        """
        if len(body) < _CULPRIT.size:
            raise ValueError(f"an abort has at least {_CULPRIT.size} bytes, not {len(body)}")
        (culprit,) = _CULPRIT.unpack_from(body)
        if not -1 <= culprit < parties:
            raise ValueError(f"an abort names one of {parties} parties, not {culprit}")
        reason = body[_CULPRIT.size : _CULPRIT.size + _LONGEST].decode(errors="replace")
        spelt = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in reason)
        return cls(None if culprit < 0 else culprit, spelt)
