"""Pairwise masks, which hide the terms of a sum: each pair of parties shares a random stream, which one party adds and
the other party subtracts.

The leader (*dominator*) of an update receives from each other party p (the *collaborators*) the vector
encode(partial) + mask_p, of integers modulo 2^64, where

    mask_p = sum over collaborators r > p of stream_pr  -  sum over collaborators r < p of stream_pr.

The masks of all collaborators add up to zero. Without the key of at least one pair that contains p, p's vector cannot
be distinguished from a uniform vector. With q parties, the dominator together with any q - 3 collaborators therefore
learns only the sum over the two other collaborators.

stream_pr is AES-256 in counter mode under the key that p and r agreed on for this segment. The counter block contains
the address of the sum and the number of the block in the stream, so two addresses never share a block:

    bits 127-120  119-112  111-96     95-64   63-0
         0        kind     dominator  update  block

One ECB call encrypts the counter blocks of many updates, which is counter mode by definition.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from itertools import combinations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from privacy.keys import KEY_BYTES
from privacy.ring import Ring

# the fixed-point numbers of all sums: errors up to 2^-41 for each vector, sums within 2^23
RING = Ring(64, 40)
# maximum bytes per peer of masks that are computed in advance: not many long masks, since some may remain unused
_WINDOW_BYTES = 32768
_BLOCK_BYTES = 16


def random_elements(length: int) -> NDArray[np.uint64]:
    """Return (length,) uniform integers below 2^64 from the operating system, for masks of a single party."""
    return np.frombuffer(secrets.token_bytes(8 * length), dtype=np.uint64).copy()


def pair_info(serial: int, first: int, second: int) -> bytes:
    """Return the bytes to which `privacy.keys.agree` binds a pair's key. The order of the parties does not matter.

    Args:
        serial: The number of the segment's attempt.
        first: The index of a party.
        second: The index of the other party.

    Raises:
        ValueError: The parties are not two different indices of at least 0.
    """
    low, high = sorted((first, second))
    if low < 0 or low == high:
        raise ValueError(f"parties {first} and {second} are not a pair: pass two different indices of at least 0")
    return b"vertical pairwise mask" + serial.to_bytes(8, "big") + low.to_bytes(2, "big") + high.to_bytes(2, "big")


class PairwiseMasks:
    """The masks of a party for one segment. Not thread-safe.

    Args:
        me: The index of the party.
        parties: The number of parties.
        keys: The 32-byte secret shared with each other party. A secret must serve one segment only, since only this
            object knows the masks that were used.
        chunk: The number of consecutive updates of a dominator whose masks are computed together.
    """

    def __init__(self, me: int, parties: int, keys: Mapping[int, bytes], *, chunk: int = 64) -> None:
        if parties < 3:
            raise ValueError(
                f"masks among {parties} parties: the dominator would learn its only collaborator's values; "
                "at least 3 parties are needed"
            )
        if not 0 <= me < parties <= 2**16:
            raise ValueError(f"party {me} of {parties} parties must be 0 to {parties - 1}, of at most {2**16} parties")
        if chunk < 1:
            raise ValueError(f"chunk {chunk} must be at least 1 update")
        self.me, self.parties, self._chunk = me, parties, chunk
        _check_keys(me, parties, keys)
        self._ciphers = {peer: Cipher(algorithms.AES(key), modes.ECB()).encryptor() for peer, key in keys.items()}
        self._streams: dict[tuple[int, int], _Stream] = {}

    def mask(self, kind: int, dominator: int, update: int, length: int) -> NDArray[np.uint64]:
        """Return this party's (length,) mask at an address. The masks of all parties except the dominator sum to 0.

        Args:
            kind: The kind of the sum. The address consists of ``kind``, ``dominator`` and ``update``.
            dominator: The party that receives the sum.
            update: The number of the sum among the dominator's sums of this kind.
            length: The length of the mask.

        Raises:
            ValueError: The address was used before, is out of range, or belongs to this party as the dominator.
        """
        stream = self._streams.get((kind, dominator))
        if stream is None:
            stream = self._open(kind, dominator)
        return stream.take(update, length)

    def _open(self, kind: int, dominator: int) -> _Stream:
        if not 0 <= kind < 256:
            raise ValueError(f"kind {kind} must be 0 to 255")
        if not 0 <= dominator < self.parties:
            raise ValueError(f"dominator {dominator} of {self.parties} parties must be 0 to {self.parties - 1}")
        if dominator == self.me:
            raise ValueError(f"party {dominator} dominates this update: it adds its own value and needs no mask")
        peers = sorted(self._ciphers.keys() - {dominator})
        stream = self._streams[kind, dominator] = _Stream(
            name=f"kind {kind}, dominator {dominator}",
            address=kind << 48 | dominator << 32,
            added=[self._ciphers[peer] for peer in peers if peer > self.me],
            subtracted=[self._ciphers[peer] for peer in peers if peer < self.me],
            chunk=self._chunk,
        )
        return stream


class _Stream:
    """The masks for one kind of a dominator's sums, some of them computed in advance, and a record of used masks."""

    def __init__(
        self, name: str, address: int, added: list[CipherContext], subtracted: list[CipherContext], chunk: int
    ) -> None:
        self._name, self._address, self._chunk = name, address, chunk
        self._added, self._subtracted = added, subtracted
        # the masks of all updates below the floor were used, and the masks of the updates ahead
        self._floor = 0
        self._ahead: set[int] = set()
        self._first = 0
        self._window = np.empty((0, 0), dtype=np.uint64)

    def take(self, update: int, length: int) -> NDArray[np.uint64]:
        if length < 1:
            raise ValueError(f"a mask of length {length} must have at least 1 element")
        self._claim(update)
        offset = update - self._first
        window = self._window
        if not (0 <= offset < len(window) and length <= window.shape[1]):
            count = max(1, min(self._chunk, _WINDOW_BYTES // (8 * length)))
            window = self._window = self._make(update, count, length)
            self._first, offset = update, 0
        # each address is used once, so the caller may change its row
        return window[offset, :length]

    def _claim(self, update: int) -> None:
        if not 0 <= update < 2**32:
            raise ValueError(f"update {update} of {self._name} must be 0 to 2^32 - 1")
        if update < self._floor or update in self._ahead:
            raise ValueError(
                f"the mask of update {update} ({self._name}) was handed out before; a mask hides one vector"
            )
        self._ahead.add(update)
        while self._floor in self._ahead:
            self._ahead.remove(self._floor)
            self._floor += 1

    def _make(self, first: int, count: int, length: int) -> NDArray[np.uint64]:
        """Return the masks of ``count`` updates from ``first`` on: (count, length), or one element longer."""
        blocks = -(-8 * length // _BLOCK_BYTES)
        counters = np.empty((count, blocks, 2), dtype=">u8")
        counters[:, :, 0] = (np.uint64(self._address + first) + np.arange(count, dtype=np.uint64))[:, None]
        counters[:, :, 1] = np.arange(blocks, dtype=np.uint64)
        addresses = counters.tobytes()
        masks = np.zeros((count, 2 * blocks), dtype=np.uint64)
        written = bytearray(len(addresses) + _BLOCK_BYTES - 1)
        stream = np.frombuffer(written, dtype="<u8", count=masks.size).reshape(masks.shape)
        for cipher in self._added:
            cipher.update_into(addresses, written)
            masks += stream
        for cipher in self._subtracted:
            cipher.update_into(addresses, written)
            masks -= stream
        return masks


def _check_keys(me: int, parties: int, keys: Mapping[int, bytes]) -> None:
    peers = set(range(parties)) - {me}
    if set(keys) != peers:
        raise ValueError(f"party {me} needs one key for each of the parties {sorted(peers)}, not for {sorted(keys)}")
    for peer, key in keys.items():
        if len(key) != KEY_BYTES:
            raise ValueError(f"the key shared with party {peer} has {len(key)} bytes, not {KEY_BYTES}")
    for first, second in combinations(sorted(keys), 2):
        if keys[first] == keys[second]:
            raise ValueError(
                f"parties {first} and {second} share the same key with party {me}; each pair needs its own key"
            )
