"""Sums of the vectors that several parties give, position by position, each checked before it is added."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

from clients.vertical.transport.frames import PartyError

Elements = NDArray[np.uint64]


class Gathering:
    """Adds up the vectors that several parties give, position by position.

    Args:
        name: what a vector is called in errors.
        senders: the parties that give.
        window: positions that may be open at once.
        length: elements at a position; raises IndexError if there is no such position.
        own: whether this party gives too, by `add_own`.
    """

    def __init__(
        self, name: str, senders: Collection[int], window: int, length: Callable[[int], int], *, own: bool = False
    ) -> None:
        self._name, self._senders, self._window, self._length = name, frozenset(senders), window, length
        self._needed = len(self._senders) + own
        self._next = 0
        self._totals: list[Elements | None] = [None] * window
        self._counts = [0] * window

    def add(self, peer: int, position: int, body: bytes | memoryview) -> bool:
        """Add what a peer sent; returns whether its position is now complete.

        Raises:
            PartyError: the peer gives nothing here, is ahead of the window or behind it, or sent another length.
        """
        if not 0 <= position - self._next < self._window or peer not in self._senders:
            raise self._out_of_place(peer, position)
        slot = position % self._window
        total = self._totals[slot]
        try:
            length = self._length(position) if total is None else len(total)
        except IndexError:
            raise self._out_of_place(peer, position) from None
        if len(body) != 8 * length:
            raise PartyError(
                peer, f"its {self._name} {position} has {len(body)} bytes, not the {8 * length} of {length} elements"
            )
        given = np.frombuffer(body, dtype=np.uint64)
        if total is None:
            self._totals[slot] = given.copy()
        else:
            np.add(total, given, total)
        count = self._counts[slot] = self._counts[slot] + 1
        return count == self._needed

    def add_own(self, position: int, elements: Elements) -> None:
        """Add this party's elements; the caller must not use the array afterwards."""
        slot = position % self._window
        total = self._totals[slot]
        if total is None:
            self._totals[slot] = elements
        else:
            np.add(total, elements, total)
        self._counts[slot] += 1

    @property
    def ready(self) -> bool:
        """Whether the next position is complete."""
        return self._counts[self._next % self._window] == self._needed

    def take(self) -> tuple[int, Elements]:
        """The next position and its sum, which must be complete; zeros where nobody gives."""
        position = self._next
        slot = position % self._window
        if not self.ready:
            raise RuntimeError(f"{self._name} {position} is not complete")
        total = self._totals[slot]
        if total is None:
            total = np.zeros(self._length(position), dtype=np.uint64)
        self._totals[slot] = None
        self._counts[slot] = 0
        self._next = position + 1
        return position, total

    def _out_of_place(self, peer: int, position: int) -> PartyError:
        if peer not in self._senders:
            return PartyError(peer, f"it sent a {self._name} ({position}) where it has none to give")
        return PartyError(
            peer,
            f"it sent {self._name} {position}, outside the window of {self._window} from {self._next} on "
            "or beyond the segment",
        )
