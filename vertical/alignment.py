"""The search for the rows that all parties have, without revealing any other row's id (`vertical.intersection`).

One party, the reporter, compares its ids with the ids of each other party. It then sends each party the positions of
the rows that all parties have.
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from vertical.agreement import Agreement
from vertical.intersection import TAG_BYTES, Intersection, IntersectionError, Match, common_rows
from vertical.transport.endpoint import Endpoint
from vertical.transport.frames import WITHHELD, FinalError, Frame, Kind, PartyError, protocol_error
from vertical.transport.mesh import Mesh

T = TypeVar("T")
# maximum number of a party's ids: a million ids need about 0.5 GB of memory
MAX_IDS = 2**24
# the steps of the search, sent in a frame's field `active`: a party's ids under its own key (tags), the ids under the
# keys of both parties, and the positions of the common rows
STEPS = TAGS, TAGS_OF_BOTH, POSITIONS = 0, 1, 2
# maximum number of bytes of a step in one frame
PIECE = 2**20
_MIN_SALT_BYTES = 16


def digest(ids: Sequence[str], salt: bytes) -> bytes:
    """Return a 32-byte digest of a list of ids, which depends on their order. The ids "7", "07" and "7 " differ.

    The digest is SHA-256 over the salt, the number of ids, and the ids. A length precedes each id, so different lists
    have different encodings.

    Raises:
        ValueError: The salt has fewer than 16 bytes.
        TypeError: An id is not text.
    """
    if len(salt) < _MIN_SALT_BYTES:
        raise ValueError(f"the salt has {len(salt)} bytes: pass at least {_MIN_SALT_BYTES} random bytes")
    parts = [len(salt).to_bytes(8, "big"), salt, len(ids).to_bytes(8, "big")]
    for row, name in enumerate(ids):
        if not isinstance(name, str):
            raise TypeError(f"the id of row {row} is {type(name).__name__}: convert ids to text")
        written = name.encode("utf-8", "surrogatepass")
        parts += (len(written).to_bytes(8, "big"), written)
    return hashlib.sha256(b"".join(parts)).digest()


async def find_rows(
    me: int,
    reporter: int,
    ids: Sequence[str],
    endpoint: Endpoint,
    serial: int,
    context: bytes,
    *,
    min_rows: int = 2,
    offered: dict[int, int] | None = None,
    agreement: Agreement | None = None,
) -> tuple[NDArray[np.int64], int]:
    """Find the rows that all parties have.

    Args:
        me: The index of this party.
        reporter: The party that compares its ids with all other parties' ids.
        ids: The id of each of this party's rows.
        endpoint: This party's access to the other parties.
        serial: The number of the attempt.
        context: Bytes that name the run, the same at all parties.
        min_rows: The required number of common rows.
        offered: A dictionary that receives the number of ids of each party whose tags this party gets.
        agreement: The terms that all parties must agree on. None: no terms.

    Returns:
        This party's positions (k,) of the common rows, in the order of their ids, and the number of bytes it sent.

    Raises:
        PartyError: A party failed, or the parties do not agree.
        FinalError: The parties have fewer than ``min_rows`` rows in common. A repetition would end the same way.
    """
    agreement = agreement or Agreement()
    mesh = Mesh(me, endpoint, serial, hello=agreement.greet())
    try:
        rows = await _RowSearch(mesh, me, ids, context, {} if offered is None else offered, agreement).rows(reporter)
        if len(rows) < min_rows:
            needed = f"at least {min_rows} {'is' if min_rows == 1 else 'are'} needed"
            raise FinalError(None, f"the parties have {len(rows)} rows in common; {needed}")
        if mesh.failed.done():
            mesh.failed.result()
    except PartyError as error:
        mesh.abort(error)
        raise
    except (IntersectionError, ValueError) as error:
        failure = PartyError(me, str(error), WITHHELD)
        mesh.abort(failure)
        raise failure from error
    finally:
        await mesh.close()
    # after closing the mesh, since sorting many ids delays heartbeats
    return np.array(sorted(rows.tolist(), key=ids.__getitem__), dtype=np.int64), mesh.counters.bytes_sent


class _RowSearch:
    """A party's side of the search. Long computations run in a thread, so heartbeats continue."""

    def __init__(
        self,
        mesh: Mesh,
        me: int,
        ids: Sequence[str],
        context: bytes,
        offered: dict[int, int],
        agreement: Agreement,
    ) -> None:
        self.mesh, self.me, self.ids, self.context, self.offered = mesh, me, ids, context, offered
        self.agreement = agreement
        self.parts: defaultdict[tuple[int, int], list[bytes]] = defaultdict(list)
        self.whole: defaultdict[tuple[int, int], asyncio.Future[bytes]] = defaultdict(
            asyncio.get_running_loop().create_future
        )

    async def rows(self, reporter: int) -> NDArray[np.int64]:
        """Return this party's positions of the common rows."""
        greetings = await self.mesh.join()
        await self.agreement.confirm(self.mesh, greetings)
        self.mesh.on_frame = self.take_frame
        own = await self.work(partial(Intersection, self.ids, context=self.context, check=self.check))
        tags = await self.work(own.blind)
        if self.me != reporter:
            await self.send(reporter, TAGS, tags)
            retagged = await self.receive(reporter, TAGS)
            await self.send(reporter, TAGS_OF_BOTH, await self.work(partial(own.reblind, retagged), reporter))
            return own.rows(np.frombuffer(await self.receive(reporter, POSITIONS), dtype="<i8"))
        peers = [party for party in range(self.mesh.parties) if party != self.me]
        for party in peers:
            await self.send(party, TAGS, tags)
        matches: dict[int, Match] = {}
        for party in peers:
            retagged = await self.work(partial(own.reblind, await self.receive(party, TAGS)), party)
            matches[party] = await self.work(partial(own.pair, await self.receive(party, TAGS_OF_BOTH), retagged))
        mine, positions = await self.work(partial(common_rows, matches))
        for party in peers:
            await self.send(party, POSITIONS, positions[party].astype("<i8").tobytes())
        return mine

    def check(self) -> None:
        """Raise the failure of another party, if any has failed."""
        if self.mesh.failed.done():
            self.mesh.failed.result()

    async def work(self, task: Callable[[], T], party: int | None = None) -> T:
        """Run a task in a thread until it ends or a party fails.

        Args:
            party: The party that sent the bytes of the task, which an error about them names. None: this party.
        """
        try:
            return await self.first(asyncio.ensure_future(asyncio.to_thread(task)))
        except IntersectionError as error:
            failure = PartyError(self.me if party is None else party, str(error))
            self.mesh.abort(failure)
            raise failure from error

    async def send(self, to: int, step: int, body: bytes) -> None:
        """Send a step's bytes in pieces. The last piece is shorter than the other pieces, and may be empty."""
        for number, at in enumerate(range(0, len(body) + 1, PIECE)):
            self.mesh.send(to, Frame(Kind.ALIGN, step, number, body[at : at + PIECE]))
            await asyncio.sleep(0)

    def take_frame(self, peer: int, frame: Frame) -> None:
        """Add a frame to its step. Its field `update` is the number of the piece."""
        step = peer, frame.active
        if frame.kind != Kind.ALIGN or frame.active not in STEPS or self.whole[step].done():
            raise protocol_error(
                peer, f"it sent a frame of kind {frame.kind}, step {frame.active}, which is not expected now"
            )
        parts, size = self.parts[step], len(frame.body)
        if frame.update != len(parts) or size > PIECE or len(parts) * PIECE + size > MAX_IDS * TAG_BYTES:
            fault = f"piece {frame.update} of step {frame.active} with {size} bytes"
            raise protocol_error(peer, f"it sent {fault}, which is out of order or too long")
        parts.append(bytes(frame.body))
        if size < PIECE:
            whole = b"".join(self.parts.pop(step))
            if frame.active == TAGS:
                self.offered[peer] = len(whole) // TAG_BYTES
            self.whole[step].set_result(whole)

    async def receive(self, party: int, step: int) -> bytes:
        """Wait for all bytes of a party's step."""
        return await self.first(self.whole[party, step])

    async def first(self, awaited: asyncio.Future[T]) -> T:
        """Return the awaited result, unless a party fails first."""
        either: list[asyncio.Future[Any]] = [awaited, self.mesh.failed]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not awaited.done():
            awaited.cancel()
            self.mesh.failed.result()
        return awaited.result()
