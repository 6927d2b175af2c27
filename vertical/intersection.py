"""Private set intersection of row ids by Diffie-Hellman (Meadows 1986; Huberman, Franklin, Hogg 1999) on Curve25519,
for parties that follow the protocol (semi-honest).

Two parties find the ids that both have. Each party hashes its ids to points H(id) of the curve and raises the points to
its secret key. The results are its *tags*. Each party also raises the other party's tags to its own key. H(id)^(a b) is
the same in either order, so equal ids have equal tags under both keys:

    A -> B: A.blind()                         B -> A: B.blind(), B.reblind(A.blind())
    A: pair(mine=B.reblind(A.blind()), theirs=A.reblind(B.blind()))

If A also sends A.reblind(B.blind()), B can pair as well. Otherwise A sends B the positions in B.blind() of the rows to
use (`Intersection.rows`), and B learns of no other common row. One party can therefore find the common rows of three or
more parties (`common_rows`). It is called the reporter.

Tags are sorted, so their order reveals nothing about the order of the rows. A tag is the u coordinate of a point, 32
bytes. docs/security.md explains the computation of H(id), and the knowledge of each party.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import gmpy2
import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from joblib import Parallel, cpu_count, delayed
from numpy.typing import ArrayLike, NDArray

TAG_BYTES = 32
# NumPy drops trailing zeros of this type, but compares tags correctly, since all tags have the same length
_TAG = np.dtype(f"S{TAG_BYTES}")
# parameters of the curve v^2 = u^3 + A u^2 + u over the integers modulo P (RFC 7748)
_P, _A = gmpy2.mpz(2**255 - 19), 486_662
# the number of ids of one call, which takes about 0.3 s, and the number of calls that are worth another process
_PIECE, _CALLS = 8192, 4


class IntersectionError(ValueError):
    """A malformed message of the other party."""


@dataclass(frozen=True, eq=False)
class Match:
    """The common rows of a pair, in the order of their tags under both keys, which is the same at both parties."""

    # (k,) positions in this party's own ids
    own: NDArray[np.int64]
    # (k,) positions in the other party's `blind()`
    theirs: NDArray[np.int64]


class Intersection:
    """A party's side of the protocol, for any number of other parties.

    `blind` and `reblind` take about 0.04 ms of one core per id, and use all cores for many ids.

    Args:
        ids: The id of each row.
        context: The name of the run, the same at all parties.
        key: The party's secret key. None: a new key.
        check: A function that is called several times a second during the work. An exception from it ends the work.

    Raises:
        ValueError: An id occurs twice. The text names the two rows but not the id, which is private.
        TypeError: An id is not text.
    """

    def __init__(
        self,
        ids: Sequence[str],
        *,
        context: bytes = b"",
        key: X25519PrivateKey | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        seen: dict[str, int] = {}
        for row, name in enumerate(ids):
            if not isinstance(name, str):
                raise TypeError(f"the id of row {row} is {type(name).__name__}: convert ids to text")
            if name in seen:
                raise ValueError(f"row {row} has the id of row {seen[name]}: remove one of the rows")
            seen[name] = row
        self._ids = [name.encode("utf-8", "surrogatepass") for name in seen]
        self._domain = hashlib.sha256(b"vertical row ids " + context).digest()
        self._secret = (key or X25519PrivateKey.generate()).private_bytes_raw()
        self._check = check
        # the row of each tag in `blind()`
        self._order: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._tags = b""

    def blind(self) -> bytes:
        """Return this party's tags for the other party: in increasing order, 32 bytes each."""
        if not self._tags:
            pieces = (self._ids[at : at + _PIECE] for at in range(0, len(self._ids), _PIECE))
            calls = (delayed(hash_ids)(piece, self._domain, self._secret) for piece in pieces)
            tags = np.frombuffer(b"".join(self._results(calls, len(self._ids))), dtype=_TAG)
            self._order = np.argsort(tags)
            self._tags = tags[self._order].tobytes()
        return self._tags

    def reblind(self, tags: bytes) -> bytes:
        """Raise the other party's tags to this party's key, and return them in the same order.

        Raises:
            IntersectionError: The tags are malformed, or a tag occurs twice.
        """
        size = _PIECE * TAG_BYTES
        count = len(_split(tags))
        pieces = (tags[at : at + size] for at in range(0, len(tags), size))
        return b"".join(self._results((delayed(raise_tags)(piece, self._secret) for piece in pieces), count))

    def pair(self, mine: bytes, theirs: bytes) -> Match:
        """Find the common rows of two parties.

        Args:
            mine: The other party's `reblind` of this party's `blind`.
            theirs: This party's `reblind` of the other party's `blind`.

        Raises:
            IntersectionError: An argument is malformed, or the other party returned a wrong number of tags.
        """
        self.blind()
        ours, their_tags = _split(mine), _split(theirs)
        if len(ours) != len(self._ids):
            raise IntersectionError(f"the other party returned {len(ours)} tags of the {len(self._ids)} that it got")
        _, positions, their_positions = np.intersect1d(ours, their_tags, assume_unique=True, return_indices=True)
        return Match(own=self._order[positions], theirs=their_positions)

    def rows(self, positions: ArrayLike) -> NDArray[np.int64]:
        """Return the (k,) rows of this party's tags at these positions, which the reporter has sent.

        Args:
            positions: The (k,) different positions in `blind()`.

        Raises:
            IntersectionError: The positions are out of range or not different.
        """
        chosen = np.asarray(positions)
        if chosen.size == 0:
            return np.empty(0, dtype=np.int64)
        self.blind()
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or len(np.unique(chosen)) != len(chosen):
            raise IntersectionError("the positions of the common rows must be different integers")
        if chosen.min() < 0 or chosen.max() >= len(self._order):
            got = f"{chosen.min()} to {chosen.max()}"
            raise IntersectionError(f"the positions of the common rows, {got}, do not fit {len(self._ids)} tags")
        return self._order[chosen.astype(np.int64)]

    def _results(self, calls: Iterator[object], count: int) -> Iterator[bytes]:
        """Yield the results of calls, in the order of the calls. Many ids are divided among processes.

        Threads would take turns, since X25519 of `cryptography` does not release Python's lock.
        """
        jobs = min(cpu_count(), 1 + count // (_CALLS * _PIECE))
        for tags in Parallel(n_jobs=jobs, return_as="generator")(calls):
            self._check()
            yield tags


def hash_ids(names: Sequence[bytes], domain: bytes, secret: bytes) -> bytes:
    """Return the tags of ids, joined: H(id) raised to a key."""
    key, tags = X25519PrivateKey.from_private_bytes(secret), []
    for name in names:
        for attempt in range(256):
            hashed = hashlib.sha256(domain + bytes((attempt,)) + name).digest()
            tag = hashed[:-1] + bytes((hashed[-1] & 127,))
            if _on_curve(tag):
                tags.append(key.exchange(X25519PublicKey.from_public_bytes(tag)))
                break
        else:
            raise ValueError("an id has no point of the curve after 256 tries")  # one id in 2^256
    return b"".join(tags)


def raise_tags(tags: bytes, secret: bytes) -> bytes:
    """Return each of the joined tags raised to a key.

    Raises:
        IntersectionError: A tag is not a point of the curve, or is one of the eight points of small order.
    """
    key, raised = X25519PrivateKey.from_private_bytes(secret), []
    for at in range(0, len(tags), TAG_BYTES):
        tag = tags[at : at + TAG_BYTES]
        try:
            if not _on_curve(tag):
                raise ValueError
            raised.append(key.exchange(X25519PublicKey.from_public_bytes(tag)))
        except ValueError:
            raise IntersectionError("the other party sent a tag that is not a point of the curve") from None
    return b"".join(raised)


def _on_curve(tag: bytes) -> bool:
    """Return whether a tag is the u coordinate of a point of the curve (not of its twist) other than (0, 0)."""
    u = gmpy2.mpz.from_bytes(tag, "little")
    return bool(u < _P and gmpy2.jacobi(u * (u * (u + _A) + 1), _P) == 1)


def common_rows(matches: Mapping[int, Match]) -> tuple[NDArray[np.int64], dict[int, NDArray[np.int64]]]:
    """Find the rows that all parties have, in an order that reveals nothing about the order of any party's ids.

    The order is the order of the tags under the keys of the reporter and the lowest other party.

    Args:
        matches: The reporter's match with each other party, by party.

    Returns:
        The reporter's own rows and, for each other party, the positions in its `blind()`.
    """
    if not matches:
        raise ValueError("matches is empty: pass the match with at least one other party")
    common = matches[min(matches)].own
    for match in matches.values():
        common = common[np.isin(common, match.own)]
    positions = {}
    for party, match in matches.items():
        order = np.argsort(match.own)
        positions[party] = match.theirs[order[np.searchsorted(match.own, common, sorter=order)]]
    return common, positions


def _split(tags: bytes) -> NDArray[np.bytes_]:
    """Return the (n,) tags; raise IntersectionError if they are malformed or a tag occurs twice."""
    if len(tags) % TAG_BYTES:
        raise IntersectionError(f"the other party sent {len(tags)} bytes of tags, not a multiple of {TAG_BYTES}")
    split = np.frombuffer(tags, dtype=_TAG)
    ordered = np.sort(split)  # a quarter of the time of np.unique
    if (ordered[1:] == ordered[:-1]).any():
        raise IntersectionError("the other party sent a tag twice, but each row has a different tag")
    return split
