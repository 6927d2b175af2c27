"""The rows that all parties have: found by the parties directly, or compared by salted digests of the ids.

To find them, the reporter intersects its ids with those of each other party. The server draws the digests' salt for
each run and compares the digests: it can test a guess of the whole list of ids, in order, but not of a single id.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.vertical.alignment.intersection import Intersection, IntersectionError, common_rows
from clients.vertical.transport.endpoint import Endpoint
from clients.vertical.transport.frames import Frame, Kind, PartyError
from clients.vertical.transport.mesh import Mesh

# the steps of the protocol, sent in a frame's field `active`
TAGS, TAGS_OF_BOTH, PLACES = 0, 1, 2
_LEAST_SALT = 16


def digest(ids: Sequence[str], salt: bytes) -> bytes:
    """32 bytes that stand for these ids in this order; "7", "07" and "7 " differ.

    SHA-256 over the salt, the number of ids, and each id; salt and ids follow their lengths, so that no two lists are
    encoded alike. ValueError for a salt below 16 bytes, TypeError for an id that is not text.
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


async def find_rows(
    me: int, reporter: int, ids: Sequence[str], endpoint: Endpoint, serial: int, context: bytes
) -> tuple[NDArray[np.int64], int]:
    """Find the rows that all parties have.

    Returns this party's positions (k,) of these rows, in the order of their ids, and the bytes it sent to the others.

    Args:
        reporter: the party that combines the matches.
        ids: the id of each of this party's rows.
        serial: number of the attempt.
        context: bytes that name the run, the same at all parties.

    Raises:
        PartyError: a party failed, or the parties share fewer than two rows.
    """
    mesh = Mesh(me, endpoint, serial)
    try:
        rows = await _Talk(mesh, me, ids, context).rows(reporter)
        if len(rows) < 2:
            mesh.abort(PartyError(None, f"the parties have {len(rows)} rows in common; at least 2 are needed"))
        if mesh.failed.done():
            mesh.failed.result()
        places = np.array(sorted(rows.tolist(), key=ids.__getitem__), dtype=np.int64)
        return places, mesh.counters.bytes_sent
    except (IntersectionError, ValueError) as error:
        failure = PartyError(me, str(error))
        mesh.abort(failure)
        raise failure from error
    finally:
        await mesh.close()


class _Talk:
    """One party's side of the protocol."""

    def __init__(self, mesh: Mesh, me: int, ids: Sequence[str], context: bytes) -> None:
        self.mesh, self.me = mesh, me
        self.own = Intersection(ids, context=context)
        self.inbox: dict[tuple[int, int], asyncio.Future[bytes]] = defaultdict(asyncio.get_running_loop().create_future)

    async def rows(self, reporter: int) -> NDArray[np.int64]:
        self.mesh.on_frame = self.take
        await self.mesh.join()
        tags = await asyncio.to_thread(self.own.blind)
        if self.me != reporter:
            self.say(reporter, TAGS, tags)
            theirs = await self.hear(reporter, TAGS)
            self.say(reporter, TAGS_OF_BOTH, await self.raised(reporter, theirs))
            return self.own.rows(np.frombuffer(await self.hear(reporter, PLACES), dtype="<i8"))
        others = [party for party in range(self.mesh.parties) if party != self.me]
        for party in others:
            self.say(party, TAGS, tags)
        matches = {}
        for party in others:
            theirs = await self.raised(party, await self.hear(party, TAGS))
            matches[party] = self.own.pair(await self.hear(party, TAGS_OF_BOTH), theirs)
        mine, places = common_rows(matches)
        for party in others:
            self.say(party, PLACES, places[party].astype("<i8").tobytes())
        return mine

    async def raised(self, party: int, tags: bytes) -> bytes:
        """Another party's tags raised to our key too; PartyError names that party if they are malformed."""
        try:
            return await asyncio.to_thread(self.own.reblind, tags)
        except IntersectionError as error:
            failure = PartyError(party, str(error))
            self.mesh.abort(failure)
            raise failure from error

    def say(self, to: int, step: int, body: bytes) -> None:
        self.mesh.send(to, Frame(Kind.ALIGN, step, 0, body))

    def take(self, peer: int, frame: Frame) -> None:
        heard = self.inbox[peer, frame.active]
        if frame.kind != Kind.ALIGN or heard.done():
            raise PartyError(peer, f"a frame of kind {frame.kind}, step {frame.active}, which is not its turn")
        heard.set_result(bytes(frame.body))

    async def hear(self, party: int, step: int) -> bytes:
        heard = self.inbox[party, step]
        either: list[asyncio.Future[Any]] = [heard, self.mesh.failed]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not heard.done():
            self.mesh.failed.result()
        return heard.result()
