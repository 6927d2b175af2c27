"""The order of every dominator's sums in a segment, which every party derives from the plan alone.

Active party k takes, one after another, the sums of its updates, with a full pass before every epoch (SVRG) or before
the first (SAGA), then the sum for its share of the evaluation's rows, and for k = 0 the evaluation's totals.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from clients.vertical.segment.plan import Plan
from clients.vertical.transport.frames import Kind
from problems.vertical.blocks.base import SAGA, SVRG
from problems.vertical.objectives import make_objective
from problems.vertical.schedule import Schedule, shares

SUMS = (Kind.PARTIAL, Kind.SNAPSHOT_PARTIAL, Kind.EVALUATION, Kind.TOTALS)
# number of evaluation totals that are not counts of scores
MARKS = 5
# ranges of scores, each with a count per class
BINS = 2048


class Agenda:
    """The sums of a plan, by the place of their dominator in `plan.active`."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.schedule = Schedule(plan.rows, len(plan.active), plan.batch_size, plan.seed)
        self.chunks = self.schedule.chunks()
        self.test_chunks = shares(plan.test_rows, len(plan.active))
        binned = len(plan.active) > 1 and plan.test_rows > 0 and make_objective(plan.problem, 0.0).classification
        self.totals = MARKS + 2 * BINS * binned
        """Length of the evaluation's totals."""
        places = range(len(plan.active))
        self.counts = [self.schedule.count(place) for place in places]
        """Updates per epoch, by place."""
        self._lengths = [self._batch_lengths(place) for place in places]
        training = plan.epochs > 0
        self.passes = plan.epochs if plan.algorithm == SVRG else int(plan.algorithm == SAGA and plan.start and training)
        """Full passes of the segment."""
        self.barriers = plan.synchronous or plan.algorithm == SVRG
        """Whether every epoch ends with all its updates applied everywhere."""

    def batches(self, place: int) -> Iterator[NDArray[np.int64]]:
        """The rows of every update that a place dominates in the segment."""
        for epoch in range(self.plan.first_epoch, self.plan.first_epoch + self.plan.epochs):
            yield from self.schedule.batches(epoch, place)

    def total(self, kind: int, place: int) -> int:
        """How many sums of a kind a place takes."""
        if kind == Kind.PARTIAL:
            return self.plan.epochs * self.counts[place]
        if kind == Kind.SNAPSHOT_PARTIAL:
            return self.passes
        return int(self.plan.evaluate and (kind == Kind.EVALUATION or place == 0))

    def length(self, kind: int, place: int, number: int) -> int:
        """Elements of a place's sum `number` of a kind; IndexError where there is none."""
        if not 0 <= number < self.total(kind, place):
            raise IndexError(f"sum {number} of {self.total(kind, place)}")
        if kind == Kind.PARTIAL:
            return self._lengths[place][number % self.counts[place]]
        if kind == Kind.TOTALS:
            return self.totals
        chunk, test_chunk = self.chunks[place], self.test_chunks[place]
        tested = 0 if kind == Kind.SNAPSHOT_PARTIAL else test_chunk.stop - test_chunk.start
        return int(chunk.stop - chunk.start + tested)

    def length_at(self, place: int, position: int) -> int:
        """Elements of the sum at a position among all that a place takes; IndexError where there is none."""
        updates = self.total(Kind.PARTIAL, place)
        if position > updates + self.passes:
            return self.length(Kind.TOTALS, place, position - updates - self.passes - 1)
        if position == updates + self.passes:
            return self.length(Kind.EVALUATION, place, 0)
        if self.plan.algorithm == SVRG:
            epoch, position = divmod(position, self.counts[place] + 1)
            if position == 0:
                return self.length(Kind.SNAPSHOT_PARTIAL, place, epoch)
            return self.length(Kind.PARTIAL, place, epoch * self.counts[place] + position - 1)
        if position < self.passes:
            return self.length(Kind.SNAPSHOT_PARTIAL, place, position)
        return self.length(Kind.PARTIAL, place, position - self.passes)

    def _batch_lengths(self, place: int) -> list[int]:
        chunk = self.chunks[place]
        length = chunk.stop - chunk.start
        size = self.plan.batch_size or length
        return [min(size, length - first) for first in range(0, length, size)]
