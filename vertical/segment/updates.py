"""A party's work in the updates of a segment (Algorithms 2 to 7): asynchronous, or in synchronous rounds.

In each update, the parties send masked partial sums of a batch to an active party, the update's *dominator*. The
dominator computes *theta*, the derivatives of the losses, and sends it back. Every party then updates its block. An
index is the index of a dominator in `plan.active`.
"""

from collections import deque
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vertical.problem.objectives import Array
from vertical.segment.dominator import Dominator
from vertical.segment.shared import SegmentContext, SegmentPhase
from vertical.segment.workers import Workers
from vertical.transport.frames import WITHHELD, Kind, PartyError, protocol_error

Rows = NDArray[np.int64]


class UpdatePhase(SegmentPhase):
    """The updates of a segment, in stretches: the epochs, or the whole segment. `begin` starts the next stretch.

    Args:
        context: The party's state during the segment.
        ends: For each stretch, the number of each dominator's updates from the segment's start to the stretch's end.
        workers: The workers that compute partials and updates.
    """

    theta_kind = Kind.THETA

    def __init__(self, context: SegmentContext, ends: list[list[int]], workers: Workers) -> None:
        self._context, self._workers = context, workers
        self._block, self._sums, self._dominator = context.block, context.sums, context.dominator
        self._active, self._own_index, self._width = context.plan.active, context.active_index, context.plan.width
        indices = range(len(self._active))
        self._batches = [context.agenda.batches(index) for index in indices]
        self._stretches = iter(ends)
        self._ends = [0] * len(indices)
        # the number of applied updates of each dominator in the segment
        self._applied = [0] * len(indices)

    def _read(self, index: int, number: int, expected: int, rows: Rows | None, body: bytes | memoryview) -> Array:
        """Return the theta of a frame's body.

        Args:
            index: The dominator that sent the frame.
            number: The number of the frame's update.
            expected: The number of the dominator's next update.
            rows: The rows of the next update. None: no theta is expected now.
            body: The body.

        Raises:
            PartyError: The theta is not expected now, or has a wrong length.
        """
        peer = self._active[index]
        if rows is None or number != expected:
            raise protocol_error(peer, f"it sent theta {number}, but {expected} is the next and is not due")
        length = 8 * self._width * len(rows) if self._context.learns else 0
        if len(body) != length:
            raise protocol_error(peer, f"its theta {number} has {len(body)} bytes, not the {length} bytes of its batch")
        return np.frombuffer(body)

    def _apply_theta(self, index: int, rows: Rows, theta: Array) -> None:
        """Update this party's block with a dominator's theta."""
        if not self._context.learns:
            return
        try:
            self._block.apply(rows, theta)
        except ValueError as error:
            raise PartyError(
                self._active[index], f"its theta cannot be applied: {error}", "its theta cannot be applied"
            ) from error


class AsynchronousUpdates(UpdatePhase):
    """Asynchronous updates: a party applies each theta when it arrives, and sends partials ahead within limits.

    A party sends its partials for update t of a dominator without a request, as soon as it has applied the dominator's
    update t - W (W: the plan's window). With the plan's skew, it also waits until the slowest dominator is close enough
    behind. A dominator adds its own partials when the sum is complete. The partials that become due in one iteration of
    the event loop are computed together, at the end of the iteration.
    """

    def __init__(self, context: SegmentContext, ends: list[list[int]], workers: Workers) -> None:
        super().__init__(context, ends, workers)
        self._tally, self._window, self._skew = context.tally, context.plan.window, context.plan.skew
        indices = range(len(self._active))
        # for each dominator, over the segment: the numbers of updates whose partials were sent (at this party's own
        # index: whose sums were taken), and of updates whose theta has arrived
        self._sent = [0] * len(indices)
        self._received = [0] * len(indices)
        # for each dominator, the updates between partials and theta: their rows, and the numbers of updates that had
        # been applied when the partials were computed, of this dominator and of all dominators
        self._pending: list[deque[tuple[Rows, int, int]]] = [deque() for _ in indices]
        # the first update of each dominator in this stretch, and the number of remaining updates of the stretch
        self._starts = [0] * len(indices)
        self._left = 0
        # the number of applied updates in this stretch of the slowest unfinished dominator
        self._min_progress = 0
        # the due partials: the dominator, the number of its update, and the rows
        self._due: list[tuple[int, int, Rows]] = []
        self._scheduled = False
        # with a single partial at a time, nothing is gained by waiting for further partials
        self._at_once = self._window == len(indices) == 1

    def begin(self) -> None:
        self._starts, self._ends = self._ends, next(self._stretches)
        self._left, self._min_progress = sum(self._ends) - sum(self._starts), 0
        for index in range(len(self._active)):
            self._advance(index)
        self._compute()
        self.process_sums()

    def process_sums(self) -> None:
        own_index, dominator = self._own_index, self._dominator
        if dominator is None:
            return
        while self._sent[own_index] < self._ends[own_index] and (sums := self._sums.take(Kind.PARTIAL)) is not None:
            number = self._sent[own_index]
            self._sent[own_index] = number + 1
            dominate = partial(self._dominate, dominator, next(self._batches[own_index]), sums, number)
            self._workers.submit(own_index, dominate, partial(self._finish_own, dominator, number))

    def take_theta(self, index: int, number: int, body: bytes | memoryview) -> None:
        pending = self._pending[index]
        theta = self._read(index, number, self._received[index], pending[0][0] if pending else None, body)
        self._received[index] = number + 1
        rows, applied, applied_of_all = pending.popleft()
        apply = partial(self._apply_theta, index, rows, theta)
        self._workers.submit(index, apply, lambda _: self._finish(index, applied, applied_of_all))

    def _dominate(self, dominator: Dominator, rows: Rows, sums: Array, number: int) -> Array:
        """Compute theta (b * k,), and apply it to this party's block.

        Args:
            dominator: This party as a dominator.
            rows: The rows of the batch.
            sums: The sums of the other parties' partials.
            number: The number of the update.
        """
        sums += self._partials(number, rows)
        theta = dominator.theta(sums, rows)
        try:
            self._block.apply(rows, theta)
        except ValueError as error:
            raise PartyError(self._context.me, f"its own theta cannot be applied: {error}", WITHHELD) from error
        return theta

    def _partials(self, number: int, rows: Rows) -> Array:
        """Compute this party's partials of an update's rows.

        If `SegmentContext.constant` is set, the first sum of each dominator consists of constants. It does so even if
        this party has already applied another dominator's theta, since other parties may not have applied that theta.
        """
        constant = self._context.constant
        return self._block.partials(rows) if number or constant is None else np.tile(constant, len(rows))

    def _finish_own(self, dominator: Dominator, number: int, theta: Array) -> None:
        dominator.announce(Kind.THETA, number, theta)
        self._context.note("theta", self._own_index, number)
        self._finish(self._own_index, self._applied[self._own_index], self._tally.applied)

    def _finish(self, index: int, applied: int, applied_of_all: int) -> None:
        """Note that a dominator's next update is applied, and schedule the partials that become possible."""
        number = self._applied[index]
        self._tally.count(number - applied, self._tally.applied - applied_of_all)
        self._applied[index] = number + 1
        self._context.note("apply", index, number)
        if self._skew and number - self._starts[index] == self._min_progress and self._raise_min_progress():
            for active_index in range(len(self._active)):
                self._advance(active_index)
        else:
            self._advance(index)
        if self._due and not self._scheduled:
            if self._at_once:
                self._compute()
            else:
                self._scheduled = True
                self._context.later(self._compute)
        self._left -= 1
        if self._left == 0:
            self._context.done()

    def _advance(self, index: int) -> None:
        """Schedule the partials for a dominator that window and skew allow. Threads start to compute them at once."""
        if index == self._own_index:
            return
        end = self._applied[index] + self._window
        if self._skew:
            end = min(end, self._starts[index] + self._min_progress + self._skew + 1)
        end = min(end, self._ends[index])
        if self._context.constant is not None and not self._applied[index]:
            end = min(end, 1)
        first = self._sent[index]
        if first >= end:
            return
        self._sent[index] = end
        for number in range(first, end):
            rows = next(self._batches[index])
            if self._workers.only_updates:
                self._due.append((index, number, rows))
            else:
                send = partial(self._send_partials, [(index, number, rows)])
                self._workers.submit(index, partial(self._partials, number, rows), send)

    def _compute(self) -> None:
        """Compute and send the due partials."""
        self._scheduled = False
        due = self._due
        if not due:
            return
        self._due = []
        rows = due[0][2] if len(due) == 1 else np.concatenate([rows for _, _, rows in due])
        self._send_partials(due, self._block.partials(rows))

    def _send_partials(self, due: list[tuple[int, int, Rows]], values: Array) -> None:
        for index, number, rows in due:
            self._pending[index].append((rows, self._applied[index], self._tally.applied))
            self._context.note("partial", index, number)
        self._sums.contribute(Kind.PARTIAL, values, [(index, self._width * len(rows)) for index, _, rows in due])

    def _raise_min_progress(self) -> bool:
        """Compute `_min_progress` again, and return whether it has grown."""
        before = self._min_progress
        progress = zip(self._applied, self._starts, self._ends, strict=True)
        self._min_progress = min((applied - start for applied, start, end in progress if applied < end), default=before)
        return self._min_progress > before


class SynchronousRounds(UpdatePhase):
    """Synchronous updates (the paper's VFB), for comparison. `begin` starts the next epoch, which consists of rounds.

    Round t evaluates the t-th batch of every active party at the same weights. Then every party applies the updates in
    the order of the active parties. An active party with fewer batches skips the epoch's last round.
    """

    def __init__(self, context: SegmentContext, ends: list[list[int]], workers: Workers) -> None:
        super().__init__(context, ends, workers)
        # of this round: the dominators in order, their rows, the arrived thetas, the dominators whose theta is still
        # expected, and the number of applied thetas
        self._participants: list[int] = []
        self._rows: dict[int, Rows] = {}
        self._thetas: dict[int, Array] = {}
        self._due: set[int] = set()
        self._next = 0
        self._own: Array | None = None
        self._proceeding = False

    def begin(self) -> None:
        self._ends = next(self._stretches)
        self._open()
        self.process_sums()

    def take_theta(self, index: int, number: int, body: bytes | memoryview) -> None:
        rows = self._rows[index] if index in self._due else None
        theta = self._read(index, number, self._applied[index], rows, body)
        self._due.remove(index)
        self._after_work(index, theta)

    def _after_work(self, index: int, theta: Array) -> None:
        self._workers.submit(index, lambda: theta, partial(self._arrived, index))

    def _arrived(self, index: int, theta: Array) -> None:
        if index == self._own_index and self._dominator is not None:
            self._dominator.announce(Kind.THETA, self._applied[index], theta)
        self._thetas[index] = theta
        self.process_sums()

    def process_sums(self) -> None:
        """Do all work that is possible: several rounds, if this is the only party."""
        if self._proceeding or not self._participants:
            return
        self._proceeding = True
        try:
            while self._participants:
                self._take()
                while self._next < len(self._participants) and self._participants[self._next] in self._thetas:
                    self._apply(self._participants[self._next])
                    self._next += 1
                if self._next < len(self._participants):
                    return
                self._open()
        finally:
            self._proceeding = False
        self._context.done()

    def _open(self) -> None:
        """Begin a round by computing all its partials. At the end of the epoch, `_participants` becomes empty."""
        self._participants = [index for index, end in enumerate(self._ends) if self._applied[index] < end]
        self._due = set(self._participants) - {self._own_index}
        self._next = 0
        self._thetas.clear()
        self._rows = {index: next(self._batches[index]) for index in self._participants}
        for index in self._participants:
            self._context.note("theta" if index == self._own_index else "partial", index, self._applied[index])
        if self._participants:
            values = self._block.partials(np.concatenate(list(self._rows.values())))
            parts = np.split(values, np.cumsum([self._width * len(rows) for rows in self._rows.values()])[:-1])
            self._own = self._context.share(Kind.PARTIAL, dict(zip(self._participants, parts, strict=True)))

    def _take(self) -> None:
        z = self._context.total(Kind.PARTIAL, self._own)
        if z is not None and self._dominator is not None:
            self._own = None
            self._after_work(self._own_index, self._dominator.theta(z, self._rows[self._own_index]))

    def _apply(self, index: int) -> None:
        self._apply_theta(index, self._rows[index], self._thetas[index])
        self._context.note("apply", index, self._applied[index])
        self._applied[index] += 1
        # the staleness of an update is the number of earlier updates in its round
        self._context.tally.count(0, self._next)
