"""Which rows do all parties have? Private set intersection of row ids by Diffie-Hellman (Meadows 1986; Huberman,
Franklin, Hogg 1999) on NIST P-256, for parties that follow the protocol (semi-honest).

Each party of a pair hashes its ids to points H(id) and raises them to its secret key; the results are its tags. The
other party raises these to its own key too. Since H(id)^(a b) is the same in either order, equal ids have equal tags
under both keys:

    A -> B: A.blind()                         B -> A: B.blind(), B.reblind(A.blind())
    A: pair(mine=B.reblind(A.blind()), theirs=A.reblind(B.blind()))

If A sends A.reblind(B.blind()) too, B can pair as well. Otherwise A sends B the places in B.blind() of the rows to use
(`Intersection.rows`), and B learns of no other common row. So one reporter can find the rows that three or more
parties have in common (`common_rows`).

Tags are sorted, so their order reveals nothing about the rows' order. docs/security.md says how H(id) is found, and
what each party learns.

A tag is the x coordinate of a point, 32 bytes. Where parties do not look for common rows, the server compares digests
of their ids under a salt that it draws for each run.
"""

import asyncio
import contextlib
import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from numpy.typing import ArrayLike, NDArray

from clients.vertical.transport.endpoint import Endpoint
from clients.vertical.transport.frames import Frame, Kind, PartyError
from clients.vertical.transport.mesh import Mesh

TAG_BYTES = 32
_CURVE = ec.SECP256R1()
_EXCHANGE = ec.ECDH()
# a point in compressed form: this byte, then x
_EVEN = b"\x02"
# the steps of the protocol, sent in a frame's field `active`
TAGS, TAGS_OF_BOTH, PLACES = 0, 1, 2
_LEAST_SALT = 16


class IntersectionError(ValueError):
    """What the other party sent is malformed."""


@dataclass(frozen=True, eq=False)
class Match:
    """The common rows of a pair, in the order of their tags under both keys, which is the same at both parties."""

    # (k,) positions in our own ids
    own: NDArray[np.int64]
    # (k,) places in the other's blind()
    other: NDArray[np.int64]


class Intersection:
    """One party's side, for one peer or several. `blind` and `reblind` take about 0.1 ms per id.

    Args:
        context: names the run; the same at all parties.
        key: drawn when None.

    Raises:
        ValueError: an id occurs twice (the text names its rows, not the id, which is private).
        TypeError: an id is not text.
    """

    def __init__(
        self, ids: Sequence[str], *, context: bytes = b"", key: ec.EllipticCurvePrivateKey | None = None
    ) -> None:
        seen: dict[str, int] = {}
        for row, name in enumerate(ids):
            if not isinstance(name, str):
                raise TypeError(f"the id of row {row} is {type(name).__name__}; ids are text")
            if name in seen:
                raise ValueError(f"row {row} has the id of row {seen[name]}; each id must occur once")
            seen[name] = row
        self._ids = [name.encode("utf-8", "surrogatepass") for name in seen]
        self._domain = hashlib.sha256(hashlib.sha256(b"vertical row ids " + context).digest())
        self._key = key or ec.generate_private_key(_CURVE)
        if not isinstance(self._key.curve, ec.SECP256R1):
            raise ValueError(f"a key on {self._key.curve.name}; it must be on secp256r1")
        # the row of each place in blind()
        self._order: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._tags: list[bytes] = []

    def blind(self) -> bytes:
        """Our tags, to be sent to the other party: in increasing order, 32 bytes each."""
        if not self._tags:
            tags = [self._hash(name) for name in self._ids]
            order = sorted(range(len(tags)), key=tags.__getitem__)
            self._order = np.array(order, dtype=np.int64)
            self._tags = [tags[row] for row in order]
        return b"".join(self._tags)

    def reblind(self, other: bytes) -> bytes:
        """Raise the other party's tags to our key too, and return them in the order given.

        Raises:
            IntersectionError: they are malformed, or one is there twice.
        """
        tags = _split(other)
        try:
            return b"".join(map(self._raise_point, tags))
        except ValueError as error:
            raise IntersectionError("the other party sent a tag that is no point of the curve") from error

    def pair(self, mine: bytes, theirs: bytes) -> Match:
        """Find the common rows of two parties.

        Args:
            mine: the other party's `reblind` of our `blind`.
            theirs: our `reblind` of the other's `blind`.

        Raises:
            IntersectionError: one of them is malformed, or not as many of our tags came back as we sent.
        """
        self.blind()
        ours, others = _split(mine), _split(theirs)
        if len(ours) != len(self._ids):
            raise IntersectionError(f"{len(ours)} of our tags came back; we sent {len(self._ids)}")
        place = {tag: at for at, tag in enumerate(others)}
        common = sorted((tag, at) for at, tag in enumerate(ours) if tag in place)
        return Match(
            own=self._order[np.array([at for _, at in common], dtype=np.int64)],
            other=np.array([place[tag] for tag, _ in common], dtype=np.int64),
        )

    def rows(self, places: ArrayLike) -> NDArray[np.int64]:
        """Return (k,) positions in our ids of the places in our `blind` that the matching party has sent.

        Raises:
            IntersectionError: they are not different places of it.
        """
        chosen = np.asarray(places)
        if chosen.size == 0:
            return np.empty(0, dtype=np.int64)
        self.blind()
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or len(np.unique(chosen)) != len(chosen):
            raise IntersectionError("the common rows' places must be different integers")
        if chosen.min() < 0 or chosen.max() >= len(self._order):
            raise IntersectionError(f"a common row at place {chosen.max()} or {chosen.min()} of {len(self._ids)} tags")
        return self._order[chosen.astype(np.int64)]

    def _hash(self, name: bytes) -> bytes:
        """H(id) raised to our key."""
        for attempt in range(256):
            hasher = self._domain.copy()
            hasher.update(bytes((attempt,)) + name)
            with contextlib.suppress(ValueError):  # half of all x are not on the curve
                return self._raise_point(hasher.digest())
        raise ValueError("no point found for an id in 256 tries")  # one id in 2^256

    def _raise_point(self, tag: bytes) -> bytes:
        """A point, given by its x coordinate, raised to our key; ValueError if it is not on the curve."""
        point = ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, _EVEN + tag)
        return self._key.exchange(_EXCHANGE, point)


def common_rows(matches: Mapping[int, Match]) -> tuple[NDArray[np.int64], dict[int, NDArray[np.int64]]]:
    """Find the rows that all parties have. Their order reveals no order of anybody's ids.

    It is that of the tags, under both keys, of the reporter and the lowest other party.

    Args:
        matches: the reporter's with each other party, by party.

    Returns:
        The reporter's own positions and, for each other party, the places in its `blind`.
    """
    if not matches:
        raise ValueError("no match with any other party")
    parties = sorted(matches)
    places = {
        party: dict(zip(matches[party].own.tolist(), matches[party].other.tolist(), strict=True)) for party in parties
    }
    common = [row for row in places[parties[0]] if all(row in places[party] for party in parties)]
    return (
        np.array(common, dtype=np.int64),
        {party: np.array([places[party][row] for row in common], dtype=np.int64) for party in parties},
    )


def _split(tags: bytes) -> list[bytes]:
    if len(tags) % TAG_BYTES:
        raise IntersectionError(f"{len(tags)} bytes of tags; each has {TAG_BYTES}")
    split = [bytes(tags[at : at + TAG_BYTES]) for at in range(0, len(tags), TAG_BYTES)]
    if len(set(split)) != len(split):
        raise IntersectionError("the other party sent a tag twice; each row has its own")
    return split


def digest(ids: Sequence[str], salt: bytes) -> bytes:
    """Return 32 bytes that stand for these ids in this order; "7", "07" and "7 " differ.

    SHA-256 over the salt, the number of ids, and each id, each text after its length, so that no two lists are encoded
    alike.

    Raises:
        ValueError: the salt has fewer than 16 bytes.
        TypeError: an id is not text.
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
    me: int, reporter: int, ids: Sequence[str], endpoint: Endpoint, serial: int, context: bytes, *, fewest: int = 2
) -> tuple[NDArray[np.int64], int]:
    """Find the rows that all parties have.

    Returns this party's positions (k,) of these rows, in the order of their ids, and how many bytes it sent.

    Args:
        reporter: the party that combines the matches.
        ids: the id of each of this party's rows.
        serial: number of the attempt.
        context: bytes that name the run, the same at all parties.
        fewest: least number of common rows that is of use.

    Raises:
        PartyError: a party failed, or the parties share fewer rows than that.
    """
    mesh = Mesh(me, endpoint, serial)
    try:
        rows = await _Talk(mesh, me, ids, context).rows(reporter)
        if len(rows) < fewest:
            needed = f"at least {fewest} {'is' if fewest == 1 else 'are'} needed"
            mesh.abort(PartyError(None, f"the parties have {len(rows)} rows in common; {needed}"))
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
            self.say(reporter, TAGS_OF_BOTH, await self.raise_tags(reporter, theirs))
            return self.own.rows(np.frombuffer(await self.hear(reporter, PLACES), dtype="<i8"))
        others = [party for party in range(self.mesh.parties) if party != self.me]
        for party in others:
            self.say(party, TAGS, tags)
        matches = {}
        for party in others:
            theirs = await self.raise_tags(party, await self.hear(party, TAGS))
            matches[party] = self.own.pair(await self.hear(party, TAGS_OF_BOTH), theirs)
        mine, places = common_rows(matches)
        for party in others:
            self.say(party, PLACES, places[party].astype("<i8").tobytes())
        return mine

    async def raise_tags(self, party: int, tags: bytes) -> bytes:
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
            raise PartyError(peer, f"a frame of kind {frame.kind}, step {frame.active}, which is not expected now")
        heard.set_result(bytes(frame.body))

    async def hear(self, party: int, step: int) -> bytes:
        heard = self.inbox[party, step]
        either: list[asyncio.Future[Any]] = [heard, self.mesh.failed]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not heard.done():
            self.mesh.failed.result()
        return heard.result()
