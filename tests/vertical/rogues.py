"""What a dishonest or slow party does in its own process: `act` of a `Post`."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass

import numpy as np

from clients.vertical.transport.frames import HEADER, Kind, pack
from clients.vertical.transport.mesh import Mesh
from problems.vertical.blocks.base import Rows
from problems.vertical.blocks.dense import DenseBlock
from problems.vertical.objectives import Array

# the update at which it happens: in the middle of a segment
AT = 25


@dataclass(frozen=True)
class Forge:
    """Sends each peer other bytes than an honest party would, once.

    Attributes:
        how: "replay", an old frame again; "serial", of an earlier attempt; "address", in the name of another party;
            "nan", a slope that is not finite.
        kind: of the frame that it happens to.
    """

    how: str
    kind: Kind

    def __call__(self) -> None:
        put, wanted = Mesh._put, int(self.kind)
        forged: set[int] = set()

        def forge(mesh: Mesh, to: int, data: bytes) -> None:
            _, serial, kind, active, update = HEADER.unpack_from(data)
            if (kind, update) != (wanted, AT) or to in forged:
                put(mesh, to, data)
                return
            forged.add(to)
            body = data[HEADER.size :]
            frames = {
                "replay": [data, pack(serial, kind, active, update - 20, body)],
                "serial": [pack(serial - 1, kind, active, update, body)],
                "address": [pack(serial, kind, active + 1, update, body)],
                "nan": [pack(serial, kind, active, update, body[:-8] + struct.pack("<d", np.nan))],
            }
            for frame in frames[self.how]:
                put(mesh, to, frame)

        Mesh._put = forge  # type: ignore[assignment, method-assign]


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
