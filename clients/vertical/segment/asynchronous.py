"""Asynchronous updates of one party: partials under window and skew, thetas applied as they come (Algorithms 2 to 7).

A party sends its partial of update (a, t) once it has applied theta (a, t - W), unasked, and waits for nobody in
particular: what it has applied is all it knows. Where it dominates, it adds its own partial at the moment the sum is
complete. The partials that become due in one turn of the loop are computed together, at the end of it.
"""

from __future__ import annotations

from collections import deque
from functools import partial

import numpy as np
from numpy.typing import NDArray

from clients.vertical.segment.plan import Event
from clients.vertical.segment.shared import Done, Station
from clients.vertical.segment.sum_order import PARTIAL
from clients.vertical.segment.workers import Workers
from clients.vertical.transport.failures import PartyError
from clients.vertical.transport.frames import Kind
from problems.vertical.objectives import Array

THETA = int(Kind.THETA)
Rows = NDArray[np.int64]


class Updates:
    """The updates between two barriers, or of the whole segment; `begin` starts the next stretch.

    Args:
        station: the party.
        ends: for each stretch and each place, how many updates of the segment are then done.
        done: called at the end of each stretch.
        workers: who computes; None: at once, in the loop.
    """

    answer_kind = THETA

    def __init__(self, station: Station, ends: list[list[int]], done: Done, workers: Workers | None = None) -> None:
        self._station, self._done, self._workers = station, done, workers
        plan, agenda = station.plan, station.agenda
        self._block, self._sums, self._dominator = station.block, station.sums, station.dominator
        self._active, self._window, self._skew = plan.active, plan.window, plan.skew
        self._mine, self._learns = station.place, station.learns
        self._theta_bytes = 8 if station.learns else 0
        places = range(len(plan.active))
        self._batches = [agenda.batches(place) for place in places]
        # by place, counted over the segment
        self._sent = [0] * len(places)  # partials, and at the own place sums taken
        self._applied = [0] * len(places)
        self._answered = [0] * len(places)
        # of partials under way: their rows, and what was applied when they were computed (of its dominator, of all)
        self._pending: list[deque[tuple[Rows, int, int]]] = [deque() for _ in places]
        # the stretch
        self._stretches = iter(ends)
        self._starts = [0] * len(places)
        self._ends = [0] * len(places)
        self._left = 0
        # fewest updates of the stretch applied of a place that is not through
        self._least = 0
        self._tally, self._log = station.tally, station.log
        # partials that are due: place, number and rows
        self._due: list[tuple[int, int, Rows]] = []
        self._scheduled = False
        self._in_loop = workers is None or workers.only_updates
        # one partial at a time: nothing to gain from waiting
        self._at_once = plan.window == len(places) == 1

    def begin(self) -> None:
        self._starts, self._ends = self._ends, next(self._stretches)
        self._left, self._least = sum(self._ends) - sum(self._starts), 0
        for place in range(len(self._active)):
            self._advance(place)
        self._compute()
        self.pull()

    def pull(self) -> None:
        mine, dominator = self._mine, self._dominator
        if dominator is None:
            return
        while self._sent[mine] < self._ends[mine] and (others := self._sums.take(PARTIAL)) is not None:
            number = self._sent[mine]
            self._sent[mine] = number + 1
            rows = next(self._batches[mine])
            if self._workers is None:
                self._dominated(number, self._dominate(rows, others))
            else:
                self._workers.submit(mine, partial(self._dominate, rows, others), partial(self._dominated, number))

    def answer(self, place: int, number: int, body: bytes | memoryview) -> None:
        peer = self._active[place]
        pending = self._pending[place]
        if not pending or number != self._answered[place]:
            raise PartyError(peer, f"it sent theta {number}, where {self._answered[place]} is the next and is not due")
        self._answered[place] = number + 1
        rows, applied, applied_of_all = pending.popleft()
        if len(body) != self._theta_bytes * len(rows):
            raise PartyError(
                peer, f"its theta {number} has {len(body)} bytes, not the {self._theta_bytes * len(rows)} of the batch"
            )
        if self._workers is None:
            self._apply(peer, rows, body)
            self._finish(place, applied, applied_of_all)
        else:
            self._workers.submit(
                place,
                partial(self._apply, peer, rows, body),
                lambda _: self._finish(place, applied, applied_of_all),
            )

    def _dominate(self, rows: Rows, others: Array) -> Array:
        """(b,) theta, applied to the own block."""
        dominator = self._dominator
        if dominator is None:
            raise RuntimeError("only an active party dominates")
        others += self._block.partials(rows)
        theta = dominator.theta(others, rows)
        try:
            self._block.apply(rows, theta)
        except ValueError as error:
            raise PartyError(self._station.me, f"its own theta cannot be applied: {error}") from error
        return theta

    def _dominated(self, number: int, theta: Array) -> None:
        mine = self._mine
        if self._dominator is not None:
            self._dominator.announce(THETA, number, theta)
        if self._log is not None:
            self._log.append(Event("theta", self._active[mine], number))
        self._finish(mine, self._applied[mine], self._tally.applied)

    def _apply(self, peer: int, rows: Rows, body: bytes | memoryview) -> None:
        if not self._learns:
            return
        try:
            self._block.apply(rows, np.frombuffer(body))
        except ValueError as error:
            raise PartyError(peer, f"its theta cannot be applied: {error}") from error

    def _finish(self, place: int, applied: int, applied_of_all: int) -> None:
        """Note that the next update of a place is applied, and have the partials computed that this allows."""
        tally, number = self._tally, self._applied[place]
        delay, staleness = number - applied, tally.applied - applied_of_all
        tally.delays += delay
        tally.staleness += staleness
        if delay > tally.most_delay:
            tally.most_delay = delay
        if staleness > tally.most_staleness:
            tally.most_staleness = staleness
        tally.applied += 1
        self._applied[place] = number + 1
        if self._log is not None:
            self._log.append(Event("apply", self._active[place], number))
        if self._skew and number - self._starts[place] == self._least and self._risen():
            for other in range(len(self._active)):
                self._advance(other)
        else:
            self._advance(place)
        if self._due and not self._scheduled:
            if self._at_once:
                self._compute()
            else:
                self._scheduled = True
                self._station.later(self._compute)
        self._left -= 1
        if self._left == 0:
            self._done()

    def _advance(self, place: int) -> None:
        """Note the partials for a place that window and skew allow; threads begin with them at once."""
        if place == self._mine:
            return
        end = self._applied[place] + self._window
        if self._skew:
            end = min(end, self._starts[place] + self._least + self._skew + 1)
        if end > self._ends[place]:
            end = self._ends[place]
        first = self._sent[place]
        if first >= end:
            return
        self._sent[place] = end
        for number in range(first, end):
            rows = next(self._batches[place])
            if self._in_loop or self._workers is None:
                self._due.append((place, number, rows))
            else:
                self._workers.submit(
                    place, partial(self._block.partials, rows), partial(self._give, [(place, number, rows)])
                )

    def _compute(self) -> None:
        """Compute the partials that are due, and send them."""
        self._scheduled = False
        due = self._due
        if not due:
            return
        self._due = []
        rows = due[0][2] if len(due) == 1 else np.concatenate([rows for _, _, rows in due])
        self._give(due, self._block.partials(rows))

    def _give(self, due: list[tuple[int, int, Rows]], values: Array) -> None:
        shares = []
        for place, number, rows in due:
            self._pending[place].append((rows, self._applied[place], self._tally.applied))
            if self._log is not None:
                self._log.append(Event("partial", self._active[place], number))
            shares.append((place, len(rows)))
        self._sums.contribute(PARTIAL, values, shares)

    def _risen(self) -> bool:
        """Find the slowest place again; whether it is further on than before."""
        before = self._least
        self._least = min(
            (
                applied - start
                for applied, start, end in zip(self._applied, self._starts, self._ends, strict=True)
                if applied < end
            ),
            default=before,
        )
        return self._least > before
