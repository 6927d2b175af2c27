"""The messages between two parties, called frames, and the error that ends a segment at all parties.

A frame is a header of 15 bytes and a body. The header, little-endian: the length of the body (u32), the serial of the
segment's attempt (u32), the kind (u8), the active party (u16) and the update (u32).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

HEADER = struct.Struct("<IIBHI")
HEADER_BYTES = HEADER.size
_CULPRIT = struct.Struct("<i")
# maximum bytes of an error's reason that is sent
_MAX_REASON_BYTES = 2000
# the public reason of a failure whose full text may quote a party's data
WITHHELD = "it failed: see its log"
# the hint of errors about messages that no honest party of the same version sends
SAME_VERSION = "run the same version at all parties"


class Kind(IntEnum):
    """The kind of a frame. The numbers are sent: never change a number, and never reuse a number that is free now."""

    # work of a segment
    PARTIAL = 1
    THETA = 2
    SNAPSHOT_PARTIAL = 3
    SNAPSHOT_THETA = 4
    EVALUATION = 5
    MASK_TREE = 6
    VALUE_TREE = 7
    LABELS = 8
    ALIGN = 9
    BARRIER = 12
    TOTALS = 13
    SCORES = 14
    TERMS = 15
    VARIES = 20
    COUNT = 21
    MASKED_FEATURES = 22
    MASKED_LABELS = 23
    MASKED_WEIGHTS = 24
    MASKED_SCORES = 25
    MASKED_SLOPES = 26
    WAVE_SUMS = 27
    BLOCK = 28
    MASKED_FACTORS = 29
    # control frames of the mesh
    HELLO = 240
    BEAT = 241
    DONE = 242
    ABORT = 243
    RELAY = 244


# kinds of this number and above are control frames of the mesh
CONTROL = Kind.HELLO.value
WORK_KINDS = frozenset(int(kind) for kind in Kind if kind < CONTROL)


class FrameError(ValueError):
    """Bytes that no honest party sends."""


@dataclass(slots=True)
class Frame:
    """A message between two parties.

    Attributes:
        kind: A number of `Kind`.
        active: The active party of the frame's sum or update, 0..65535.
        update: The number of the update, 0..2^32 - 1.
        body: The content. A received body is bytes. A body to send is copied at once, so its memory may be reused.
    """

    kind: int
    active: int
    update: int
    body: bytes | memoryview = b""


def pack(serial: int, kind: int, active: int, update: int, body: bytes | memoryview = b"") -> bytes:
    """Return a frame's bytes, with the serial of its segment.

    Raises:
        ValueError: A number does not fit the header, or the body is not contiguous.
    """
    if type(body) is bytes:
        length = len(body)
    else:
        view = memoryview(body)
        if not view.c_contiguous:
            raise ValueError("the body of a frame must be a contiguous array: pass np.ascontiguousarray(body)")
        length = view.nbytes
    try:
        return HEADER.pack(length, serial, kind, active, update) + body
    except struct.error:
        raise ValueError(
            f"kind {kind}, active {active}, update {update} and {length} bytes do not fit the header: "
            "kind below 256, active below 65,536, update and length below 4,294,967,296"
        ) from None


class PartyError(RuntimeError):
    """A failure of a party, which ends the segment at all parties.

    Attributes:
        party: The index of the party that failed, the *culprit*. None if no single party can be named.
        reason: The reason. "It" in the text is the culprit.
        public: The part of the reason that a party may send if it reads its own file. By default the entire reason.
    """

    def __init__(self, party: int | None, reason: str, public: str | None = None) -> None:
        super().__init__(party, reason, public)
        self.party = party
        self.reason = reason
        self.public = reason if public is None else public

    def __str__(self) -> str:
        return self.reason if self.party is None else f"party {self.party}: {self.reason}"

    @classmethod
    def of(cls, error: BaseException, party: int) -> PartyError:
        """Return the error itself if it is a `PartyError`, else a `PartyError` that wraps it.

        Args:
            error: The error.
            party: The party at which the error occurred, which becomes the culprit.
        """
        if isinstance(error, PartyError):
            return error
        words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        failure = cls(party, words, WITHHELD)
        failure.__cause__ = error
        return failure

    def redact(self) -> PartyError:
        """Return the error with only the public part of its reason."""
        return self if self.public == self.reason else PartyError(self.party, self.public)

    def to_bytes(self) -> bytes:
        """Return the body of an ABORT frame. A reason of more than 2,000 bytes is cut."""
        reason = self.reason.encode(errors="replace")[:_MAX_REASON_BYTES]
        return _CULPRIT.pack(-1 if self.party is None else self.party) + reason

    @classmethod
    def from_bytes(cls, body: bytes, parties: int) -> PartyError:
        """Read the body of an ABORT frame.

        Line breaks, escape sequences and other unprintable characters are escaped, since the reason appears in logs.

        Raises:
            ValueError: The body is too short, or the culprit is not in 0..parties-1.
        """
        if len(body) < _CULPRIT.size:
            raise ValueError(f"the body of an abort must have at least {_CULPRIT.size} bytes, got {len(body)}")
        (culprit,) = _CULPRIT.unpack_from(body)
        if not -1 <= culprit < parties:
            raise ValueError(f"the body of an abort must name one of {parties} parties, got {culprit}")
        reason = body[_CULPRIT.size : _CULPRIT.size + _MAX_REASON_BYTES].decode(errors="replace")
        spelt = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in reason)
        return cls(None if culprit < 0 else culprit, spelt)


def protocol_error(party: int, fault: str) -> PartyError:
    """Return the error for a message that no honest party of the same version sends.

    Args:
        party: The sender.
        fault: The fault of the message, with "it" for the sender.
    """
    return PartyError(party, f"{fault}; {SAME_VERSION}")


class FinalError(PartyError):
    """A failure that would recur in each further attempt, so the server does not repeat the segment."""
