"""What a dishonest or broken party does in its own process: `act` of a `Post`."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass

import numpy as np

from clients.vertical.frames import HEADER, Kind, pack
from clients.vertical.mesh import Mesh
from problems.vertical.blocks import DenseBlock, Rows
from problems.vertical.objectives import Array

# the update at which it happens: in the middle of a segment
AT = 25


@dataclass(frozen=True)
class Forge:
    """Sends a peer other bytes than an honest party would, once.

    Attributes:
        how: "replay", the same frame again; "later replay", an old frame again; "serial", of an earlier attempt;
            "length", a header that announces more than follows is allowed; "cut", a body that is too short; "address",
            in the name of another party; "nan", a slope that is not finite; "garbage", bytes that are no frame.
        kind: of the frame that it happens to.
    """

    how: str
    kind: Kind

    def __call__(self) -> None:
        put, wanted = Mesh._put, int(self.kind)
        forged: set[int] = set()

        def forge(mesh: Mesh, to: int, data: bytes) -> None:
            _, serial, kind, active, update = HEADER.unpack_from(data)
            if kind != wanted or update != AT or to in forged:
                put(mesh, to, data)
                return
            forged.add(to)
            for frame in self.frames(data, serial, kind, active, update):
                put(mesh, to, frame)

        Mesh._put = forge  # type: ignore[assignment, method-assign]

    def frames(self, data: bytes, serial: int, kind: int, active: int, update: int) -> list[bytes]:
        """What goes out in the place of `data`."""
        body = data[HEADER.size :]
        if self.how == "replay":
            return [data, data]
        if self.how == "later replay":
            return [data, pack(serial, kind, active, update - 20, body)]
        if self.how == "serial":
            return [pack(serial - 1, kind, active, update, body)]
        if self.how == "length":
            return [HEADER.pack(2**31, serial, kind, active, update) + body]
        if self.how == "cut":
            return [pack(serial, kind, active, update, body[:-8])]
        if self.how == "address":
            return [pack(serial, kind, active + 1, update, body)]
        if self.how == "nan":
            return [pack(serial, kind, active, update, body[:-8] + struct.pack("<d", np.nan))]
        if self.how == "garbage":
            return [bytes(range(1, 200))]
        raise ValueError(self.how)


@dataclass(frozen=True)
class Slow:
    """Computes each update of its block for so many seconds, and cannot do anything else meanwhile."""

    seconds: float

    def __call__(self) -> None:
        apply, seconds = DenseBlock.apply, self.seconds

        def slowly(self: DenseBlock, rows: Rows, theta: Array) -> None:
            time.sleep(seconds)
            apply(self, rows, theta)

        DenseBlock.apply = slowly  # type: ignore[method-assign]
