"""The order and the lengths of all sums of a segment. Every party derives them from the plan alone.

An active party takes the sums of its updates in order, with a full pass before every epoch (SVRG) or before the first
epoch (SAGA). The sum for its share of the evaluation's rows follows. The first active party also takes the totals of
the evaluation. In a segment that scores rows, every active party takes only the sums of all rows, piece by piece.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vertical.problem.blocks import NO_PENALTY
from vertical.problem.blocks.base import SAGA, SVRG
from vertical.problem.objectives import make_objective
from vertical.problem.schedule import Schedule, shares
from vertical.segment.plan import SegmentPlan
from vertical.transport.frames import Kind

SUMS = (Kind.PARTIAL, Kind.SNAPSHOT_PARTIAL, Kind.EVALUATION, Kind.TOTALS, Kind.SCORES)
# the number of the evaluation's totals, not counting the numbers of rows by ranges of scores
MARKS = 5
# the number of ranges of scores; each has a count of rows per class
BINS = 2048
# maximum number of values in a sum of scores: a frame has at most half a MiB
PIECE = 2**16


class Agenda:
    """The sums of a segment. An argument `index` is the index in `plan.active` of the party that takes a sum.

    Args:
        plan: The segment's plan.
    """

    def __init__(self, plan: SegmentPlan) -> None:
        self.plan = plan
        self.schedule = Schedule(plan.rows, 1 if plan.score else len(plan.active), plan.batch_size, plan.seed)
        self.chunks = self.schedule.chunks
        self.test_chunks = shares(plan.test_rows, len(plan.active))
        binned = len(plan.active) > 1 and plan.test_rows > 0 and make_objective(plan.problem, 0.0).classification
        self.totals = MARKS + 2 * BINS * binned + (plan.penalty != NO_PENALTY)
        """The length of the evaluation's totals."""
        first = plan.algorithm == SAGA and plan.start and plan.epochs > 0
        self.passes = plan.epochs if plan.algorithm == SVRG else int(first)
        """The number of the segment's full passes."""
        self.barriers = plan.synchronous or plan.algorithm == SVRG
        """Whether every epoch ends with a point at which all parties have applied all its updates."""
        self.counts = [0 if plan.score else self.schedule.count(index) for index in range(len(plan.active))]
        """The number of updates per epoch of each active party."""
        piece = max(PIECE // plan.width, 1)
        starts = range(0, plan.rows if plan.score else 0, piece)
        self.pieces = [slice(start, min(start + piece, plan.rows)) for start in starts]
        """The rows of each sum of scores, in order."""

    @property
    def longest(self) -> int:
        """The maximum number of elements of a sum."""
        if self.plan.score:
            return self.plan.width * max(map(_count, self.pieces))
        return max(self.plan.width * (self.plan.rows + self.plan.test_rows), self.totals)

    def batches(self, index: int) -> Iterator[NDArray[np.int64]]:
        """Return the rows of every update that an active party leads in the segment."""
        for epoch in range(self.plan.first_epoch, self.plan.first_epoch + self.plan.epochs):
            yield from self.schedule.batches(epoch, index)

    def total(self, kind: int, index: int) -> int:
        """Return the number of sums of a kind that an active party takes."""
        if kind == Kind.SCORES:
            return len(self.pieces)
        if kind == Kind.PARTIAL:
            return self.plan.epochs * self.counts[index]
        if kind == Kind.SNAPSHOT_PARTIAL:
            return self.passes
        return int(self.plan.evaluate and (kind == Kind.EVALUATION or index == 0))

    def length(self, kind: int, index: int, number: int) -> int:
        """Return the number of elements of an active party's sum of a kind.

        Args:
            kind: The kind of the sum.
            index: The index of the active party.
            number: The number of the sum among the party's sums of this kind, from 0.

        Raises:
            IndexError: The party has fewer sums of this kind.
        """
        if not 0 <= number < self.total(kind, index):
            raise IndexError(f"sum {number} of {self.total(kind, index)} sums does not exist")
        return self.totals if kind == Kind.TOTALS else self.plan.width * self._rows(kind, index, number)

    def _rows(self, kind: int, index: int, number: int) -> int:
        """Return the number of rows of a sum."""
        if kind == Kind.SCORES:
            return _count(self.pieces[number])
        length = _count(self.chunks[index])
        if kind == Kind.EVALUATION:
            return length + _count(self.test_chunks[index])
        if kind == Kind.SNAPSHOT_PARTIAL:
            return length
        first = number % self.counts[index] * self.plan.batch_size
        return min(self.plan.batch_size or length, length - first)

    def length_at(self, index: int, position: int) -> int:
        """Return the number of elements of an active party's sum of any kind.

        Args:
            index: The index of the active party.
            position: The position among all sums of the party, from 0.

        Raises:
            IndexError: The party has fewer sums.
        """
        if self.plan.score:
            return self.length(Kind.SCORES, index, position)
        # SAGA has a full pass before all updates, SVRG a full pass before the updates of each epoch
        before, each = (0, 1) if self.plan.algorithm == SVRG else (self.passes, 0)
        epoch, within = divmod(position - before, self.counts[index] + each)
        if 0 <= epoch < self.plan.epochs and within >= each:
            return self.length(Kind.PARTIAL, index, within - each)
        if epoch < self.plan.epochs:
            return self.length(Kind.SNAPSHOT_PARTIAL, index, 0)
        last = position - self.passes - self.total(Kind.PARTIAL, index)
        return self.length(Kind.TOTALS, index, last - 1) if last else self.length(Kind.EVALUATION, index, 0)


def _count(rows: slice) -> int:
    return int(rows.stop - rows.start)
