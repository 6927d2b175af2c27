"""The updates of a party, dominator or collaborator (Algorithms 2 to 7): asynchronous, or in rounds."""

from collections import deque
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vertical.problem.objectives import Array
from vertical.segment.dominator import Dominator
from vertical.segment.shared import SegmentPhase, Station
from vertical.segment.workers import Workers
from vertical.transport.frames import WITHHELD, Kind, PartyError

Rows = NDArray[np.int64]


class UpdatePhase(SegmentPhase):
    """The updates between two barriers, or of the whole segment. `begin` starts the next stretch.

    Args:
        ends: The number of the segment's updates done at the end of each stretch, by place.
    """

    answer_kind = Kind.THETA

    def __init__(self, station: Station, ends: list[list[int]], workers: Workers) -> None:
        self._station, self._workers = station, workers
        self._block, self._sums, self._dominator = station.block, station.sums, station.dominator
        self._active, self._mine, self._width = station.plan.active, station.place, station.plan.width
        places = range(len(self._active))
        self._batches = [station.agenda.batches(place) for place in places]
        self._stretches = iter(ends)
        self._ends = [0] * len(places)
        # the number of applied updates in the segment, by place
        self._applied = [0] * len(places)

    def _read(self, place: int, number: int, expected: int, rows: Rows | None, body: bytes | memoryview) -> Array:
        """Return a body's theta; raise PartyError if it is not due (also if ``rows`` is None) or of wrong length."""
        peer = self._active[place]
        if rows is None or number != expected:
            raise PartyError(peer, f"it sent theta {number}, but {expected} is the next and is not due")
        length = 8 * self._width * len(rows) if self._station.learns else 0
        if len(body) != length:
            raise PartyError(peer, f"its theta {number} has {len(body)} bytes, not the {length} of the batch")
        return np.frombuffer(body)

    def _apply_theta(self, place: int, rows: Rows, theta: Array) -> None:
        """Update this party's block with a dominator's theta."""
        if not self._station.learns:
            return
        try:
            self._block.apply(rows, theta)
        except ValueError as error:
            raise PartyError(
                self._active[place], f"its theta cannot be applied: {error}", "its theta cannot be applied"
            ) from error


class Updates(UpdatePhase):
    """Asynchronous updates: partials within window and skew, thetas applied when they arrive.

    A party sends its partial of dominator a's update t without a request as soon as it has applied theta (a, t - W). It
    needs no information about other parties. A dominator adds its own partial when the sum is complete. The partials
    that become due in one turn of the loop are computed together, at its end.
    """

    def __init__(self, station: Station, ends: list[list[int]], workers: Workers) -> None:
        super().__init__(station, ends, workers)
        self._tally, self._window, self._skew = station.tally, station.plan.window, station.plan.skew
        places = range(len(self._active))
        # by the dominator's place, counted over the segment
        self._sent = [0] * len(places)  # partials; at this party's own place, sums taken
        self._answered = [0] * len(places)
        # partials under way: rows, and updates applied when they were computed (this dominator's, all)
        self._pending: list[deque[tuple[Rows, int, int]]] = [deque() for _ in places]
        # the stretch's first update, and the number of its remaining updates
        self._starts = [0] * len(places)
        self._left = 0
        # the minimum number of applied updates in this stretch, over the unfinished places
        self._least = 0
        # the due partials: place, number and rows
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
            dominate = partial(self._dominate, dominator, next(self._batches[mine]), others, number)
            self._workers.submit(mine, dominate, partial(self._finish_own, dominator, number))

    def answer(self, place: int, number: int, body: bytes | memoryview) -> None:
        pending = self._pending[place]
        theta = self._read(place, number, self._answered[place], pending[0][0] if pending else None, body)
        self._answered[place] = number + 1
        rows, applied, applied_of_all = pending.popleft()
        apply = partial(self._apply_theta, place, rows, theta)
        self._workers.submit(place, apply, lambda _: self._finish(place, applied, applied_of_all))

    def _dominate(self, dominator: Dominator, rows: Rows, others: Array, number: int) -> Array:
        """Compute theta (b * k,) and apply it to the own block."""
        others += self._partials(number, rows)
        theta = dominator.theta(others, rows)
        try:
            self._block.apply(rows, theta)
        except ValueError as error:
            raise PartyError(self._station.me, f"its own theta cannot be applied: {error}", WITHHELD) from error
        return theta

    def _partials(self, number: int, rows: Rows) -> Array:
        """Compute this party's partials of an update's rows.

        The first sum of a dominator is of constants if `Station.constant` is set, even if the theta of another
        dominator has already been applied: at other parties it may not have been.
        """
        constant = self._station.constant
        return self._block.partials(rows) if number or constant is None else np.tile(constant, len(rows))

    def _finish_own(self, dominator: Dominator, number: int, theta: Array) -> None:
        dominator.announce(Kind.THETA, number, theta)
        self._station.note("theta", self._mine, number)
        self._finish(self._mine, self._applied[self._mine], self._tally.applied)

    def _finish(self, place: int, applied: int, applied_of_all: int) -> None:
        """Note that a place's next update is applied, and schedule the partials that become possible."""
        number = self._applied[place]
        self._tally.count(number - applied, self._tally.applied - applied_of_all)
        self._applied[place] = number + 1
        self._station.note("apply", place, number)
        if self._skew and number - self._starts[place] == self._least and self._raise_least():
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
        """Schedule the partials for a place that window and skew allow. Threads start at once."""
        if place == self._mine:
            return
        end = self._applied[place] + self._window
        if self._skew:
            end = min(end, self._starts[place] + self._least + self._skew + 1)
        end = min(end, self._ends[place])
        if self._station.constant is not None and not self._applied[place]:
            end = min(end, 1)
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
                self._workers.submit(place, partial(self._partials, number, rows), give)

    def _compute(self) -> None:
        """Compute and send the due partials."""
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
        self._sums.contribute(Kind.PARTIAL, values, [(place, self._width * len(rows)) for place, _, rows in due])

    def _raise_least(self) -> bool:
        """Recompute `_least`, and return whether it has grown."""
        before = self._least
        progress = zip(self._applied, self._starts, self._ends, strict=True)
        self._least = min((applied - start for applied, start, end in progress if applied < end), default=before)
        return self._least > before


class Rounds(UpdatePhase):
    """Synchronous updates (VFB), in rounds within an epoch, for comparison. `begin` starts the next epoch.

    Round t evaluates the t-th batch of every active party at one point. Then every party applies the updates in the
    order of the active parties. A party whose slice has fewer batches skips the epoch's last round.
    """

    def __init__(self, station: Station, ends: list[list[int]], workers: Workers) -> None:
        super().__init__(station, ends, workers)
        # this round: its places, in order; their rows; the arrived and the due thetas; the number of applied thetas
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
        rows = self._rows[place] if place in self._due else None
        theta = self._read(place, number, self._applied[place], rows, body)
        self._due.remove(place)
        self._after_work(place, theta)

    def _after_work(self, place: int, theta: Array) -> None:
        self._workers.submit(place, lambda: theta, partial(self._arrived, place))

    def _arrived(self, place: int, theta: Array) -> None:
        if place == self._mine and self._dominator is not None:
            self._dominator.announce(Kind.THETA, self._applied[place], theta)
        self._thetas[place] = theta
        self.pull()

    def pull(self) -> None:
        """Do all work that is possible. It is a loop, since a party without peers completes every round at once."""
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
        """Begin a round by computing all its partials. At the end of the epoch `_in` becomes empty."""
        self._in = [place for place, end in enumerate(self._ends) if self._applied[place] < end]
        self._due = set(self._in) - {self._mine}
        self._next = 0
        self._thetas.clear()
        self._rows = {place: next(self._batches[place]) for place in self._in}
        for place in self._in:
            self._station.note("theta" if place == self._mine else "partial", place, self._applied[place])
        if self._in:
            values = self._block.partials(np.concatenate(list(self._rows.values())))
            parts = np.split(values, np.cumsum([self._width * len(rows) for rows in self._rows.values()])[:-1])
            self._own = self._station.share(Kind.PARTIAL, dict(zip(self._in, parts, strict=True)))

    def _take(self) -> None:
        z = self._station.total(Kind.PARTIAL, self._own)
        if z is not None and self._dominator is not None:
            self._own = None
            self._after_work(self._mine, self._dominator.theta(z, self._rows[self._mine]))

    def _apply(self, place: int) -> None:
        self._apply_theta(place, self._rows[place], self._thetas[place])
        self._station.note("apply", place, self._applied[place])
        self._applied[place] += 1
        # its staleness is the number of this round's updates applied since its partials were computed
        self._station.tally.count(0, self._next)
