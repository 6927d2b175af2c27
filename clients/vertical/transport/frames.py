"""What travels between two parties: a header of 15 bytes and a body.

Header, little-endian: length of the body (u32), serial of the segment (u32), kind (u8), active party (u16),
update (u32).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

HEADER = struct.Struct("<IIBHI")
HEADER_BYTES = HEADER.size


class Kind(IntEnum):
    """What a frame is. The numbers are the wire's: never change one, nor give one again that is free."""

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
    # the mesh's own
    HELLO = 240
    BEAT = 241
    DONE = 242
    ABORT = 243


# kinds of this number and above are the mesh's own
CONTROL = Kind.HELLO.value
WORK_KINDS = frozenset(int(kind) for kind in Kind if kind < CONTROL)


class FrameError(ValueError):
    """Bytes that no honest party sends."""


@dataclass(slots=True)
class Frame:
    """One message between two parties.

    Attributes:
        kind: a number of `Kind`.
        active: the active party it concerns, 0..65535.
        update: number of the update, 0..2^32 - 1.
        body: its content; bytes on arrival. What is sent is copied at once, so its memory may be used again.
    """

    kind: int
    active: int
    update: int
    body: bytes | memoryview = b""


def pack(serial: int, kind: int, active: int, update: int, body: bytes | memoryview = b"") -> bytes:
    """The frame's bytes; ValueError when a number has no place in the header, or the body is not contiguous."""
    if type(body) is bytes:
        length = len(body)
    else:
        view = memoryview(body)
        if not view.c_contiguous:
            raise ValueError("a body is contiguous memory, not an array with gaps")
        length = view.nbytes
    try:
        return HEADER.pack(length, serial, kind, active, update) + body
    except struct.error:
        raise ValueError(
            f"kind {kind}, active {active}, update {update} and {length} bytes do not fit the header: "
            "kind below 256, active below 65,536, update and length below 4,294,967,296"
        ) from None
