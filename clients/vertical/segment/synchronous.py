"""Synchronous updates (VFB), in rounds within an epoch, for comparison with the asynchronous ones.

Round t evaluates the t-th batch of every active party at one point; then every party applies the updates in the order
of the active parties. A party whose slice has fewer batches takes no part in the epoch's last round.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from clients.vertical.segment.shared import Rows, Station, UpdatePhase
from clients.vertical.segment.workers import Workers
from clients.vertical.transport.frames import Kind
from problems.vertical.objectives import Array


class Rounds(UpdatePhase):
    """The rounds of one epoch after another; `begin` starts the next epoch."""

    def __init__(self, station: Station, ends: list[list[int]], workers: Workers) -> None:
        super().__init__(station, ends, workers)
        # this round: its places, in order; their rows; the thetas that have come, and those due; how many are applied
        self._in: list[int] = []
        self._rows: dict[int, Rows] = {}
        self._thetas: dict[int, Array] = {}
        self._due: set[int] = set()
        self._next = 0
        self._own: Array | None = None
        self._proceeding = False

    def begin(self) -> None:
        self._ends = next(self._stretches)
        self._open()
        self.pull()

    def answer(self, place: int, number: int, body: bytes | memoryview) -> None:
        self._check_due(place in self._due, place, number, self._applied[place])
        self._due.remove(place)
        self._check_length(place, number, self._rows[place], body)
        self._after_work(place, np.frombuffer(body))

    def _after_work(self, place: int, theta: Array) -> None:
        self._workers.submit(place, lambda: theta, partial(self._arrived, place))

    def _arrived(self, place: int, theta: Array) -> None:
        if place == self._mine and self._dominator is not None:
            self._dominator.announce(Kind.THETA, self._applied[place], theta)
        self._thetas[place] = theta
        self.pull()

    def pull(self) -> None:
        """Do all that can be done. A loop, as a party without peers completes every round at once."""
        if self._proceeding or not self._in:
            return
        self._proceeding = True
        try:
            while self._in:
                self._take()
                while self._next < len(self._in) and self._in[self._next] in self._thetas:
                    self._apply(self._in[self._next])
                    self._next += 1
                if self._next < len(self._in):
                    return
                self._open()
        finally:
            self._proceeding = False
        self._station.done()

    def _open(self) -> None:
        """Begin a round: compute all its partials now. At the end of the epoch `_in` becomes empty."""
        self._in = [place for place, end in enumerate(self._ends) if self._applied[place] < end]
        self._due = set(self._in) - {self._mine}
        self._next = 0
        self._thetas.clear()
        self._rows = {place: next(self._batches[place]) for place in self._in}
        for place in self._in:
            self._station.note("theta" if place == self._mine else "partial", place, self._applied[place])
        if self._in:
            values = self._block.partials(np.concatenate(list(self._rows.values())))
            parts = np.split(values, np.cumsum([len(rows) for rows in self._rows.values()])[:-1])
            self._own = self._station.share(Kind.PARTIAL, dict(zip(self._in, parts, strict=True)))

    def _take(self) -> None:
        """Compute this party's own theta, once its sum is complete."""
        z = self._station.total(Kind.PARTIAL, self._own)
        if z is not None and self._dominator is not None:
            self._own = None
            self._after_work(self._mine, self._dominator.theta(z, self._rows[self._mine]))

    def _apply(self, place: int) -> None:
        self._apply_theta(place, self._rows[place], self._thetas[place])
        self._station.note("apply", place, self._applied[place])
        self._applied[place] += 1
        tally = self._station.tally
        tally.applied += 1
        # updates of this round applied since its partials were computed
        tally.staleness += self._next
        tally.most_staleness = max(tally.most_staleness, self._next)
