"""Asynchronous updates of one party: partials within window and skew, thetas applied as they come (Algorithms 2 to 7).

A party sends its partial of dominator a's update t, unasked, once it has applied theta (a, t - W); all it needs to know
is what it has applied itself. A dominator adds its own partial at the moment the sum is complete. The partials that
become due in one turn of the loop are computed together, at its end.
"""

from __future__ import annotations

from collections import deque
from functools import partial

import numpy as np

from clients.vertical.segment.dominator import Dominator
from clients.vertical.segment.shared import Rows, Station, UpdatePhase
from clients.vertical.segment.workers import Workers
from clients.vertical.transport.frames import Kind, PartyError
from problems.vertical.objectives import Array


class Updates(UpdatePhase):
    """The updates of each stretch, as window and skew allow them."""

    def __init__(self, station: Station, ends: list[list[int]], workers: Workers) -> None:
        super().__init__(station, ends, workers)
        self._tally, self._window, self._skew = station.tally, station.plan.window, station.plan.skew
        places = range(len(self._active))
        # by place of the dominator, counted over the segment
        self._sent = [0] * len(places)  # partials; at this party's own place, sums taken
        self._answered = [0] * len(places)
        # partials under way: rows, and the updates applied when they were computed (this dominator's, all)
        self._pending: list[deque[tuple[Rows, int, int]]] = [deque() for _ in places]
        # where this stretch starts, and how many of its updates are left
        self._starts = [0] * len(places)
        self._left = 0
        # smallest number of updates applied in this stretch, over the places that are not finished
        self._least = 0
        # partials that are due: place, number and rows
        self._due: list[tuple[int, int, Rows]] = []
        self._scheduled = False
        # one partial at a time: waiting would gain nothing
        self._at_once = self._window == len(places) == 1

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
        while self._sent[mine] < self._ends[mine] and (others := self._sums.take(Kind.PARTIAL)) is not None:
            number = self._sent[mine]
            self._sent[mine] = number + 1
            dominate = partial(self._dominate, dominator, next(self._batches[mine]), others)
            self._workers.submit(mine, dominate, partial(self._dominated, dominator, number))

    def answer(self, place: int, number: int, body: bytes | memoryview) -> None:
        pending = self._pending[place]
        self._check_due(bool(pending), place, number, self._answered[place])
        self._answered[place] = number + 1
        rows, applied, applied_of_all = pending.popleft()
        self._check_length(place, number, rows, body)
        self._workers.submit(
            place,
            partial(self._apply_theta, place, rows, np.frombuffer(body)),
            lambda _: self._finish(place, applied, applied_of_all),
        )

    def _dominate(self, dominator: Dominator, rows: Rows, others: Array) -> Array:
        """Compute theta (b,) and apply it to the own block."""
        others += self._block.partials(rows)
        theta = dominator.theta(others, rows)
        try:
            self._block.apply(rows, theta)
        except ValueError as error:
            raise PartyError(self._station.me, f"its own theta cannot be applied: {error}") from error
        return theta

    def _dominated(self, dominator: Dominator, number: int, theta: Array) -> None:
        dominator.announce(Kind.THETA, number, theta)
        self._station.note("theta", self._mine, number)
        self._finish(self._mine, self._applied[self._mine], self._tally.applied)

    def _finish(self, place: int, applied: int, applied_of_all: int) -> None:
        """Note that the next update of a place is applied, and schedule the partials that this allows."""
        tally, number = self._tally, self._applied[place]
        delay, staleness = number - applied, tally.applied - applied_of_all
        tally.delays += delay
        tally.staleness += staleness
        tally.most_delay = max(tally.most_delay, delay)
        tally.most_staleness = max(tally.most_staleness, staleness)
        tally.applied += 1
        self._applied[place] = number + 1
        self._station.note("apply", place, number)
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
            self._station.done()

    def _advance(self, place: int) -> None:
        """Schedule the partials for a place that window and skew allow; threads start on them at once."""
        if place == self._mine:
            return
        end = self._applied[place] + self._window
        if self._skew:
            end = min(end, self._starts[place] + self._least + self._skew + 1)
        end = min(end, self._ends[place])
        first = self._sent[place]
        if first >= end:
            return
        self._sent[place] = end
        for number in range(first, end):
            rows = next(self._batches[place])
            if self._workers.only_updates:
                self._due.append((place, number, rows))
            else:
                give = partial(self._give, [(place, number, rows)])
                self._workers.submit(place, partial(self._block.partials, rows), give)

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
        for place, number, rows in due:
            self._pending[place].append((rows, self._applied[place], self._tally.applied))
            self._station.note("partial", place, number)
        self._sums.contribute(Kind.PARTIAL, values, [(place, len(rows)) for place, _, rows in due])

    def _risen(self) -> bool:
        """Recompute `_least`; returns whether it has grown."""
        before = self._least
        progress = zip(self._applied, self._starts, self._ends, strict=True)
        self._least = min((applied - start for applied, start, end in progress if applied < end), default=before)
        return self._least > before
