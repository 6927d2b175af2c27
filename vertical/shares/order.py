"""An order of a segment's random numbers, from which a dealer and the parties derive the same shapes and batches."""

import secrets
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
from jaxtyping import Int64
from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt

from vertical.problem.schedule import Schedule
from vertical.segment.plan import SegmentPlan
from vertical.segment.sum_order import PIECE
from vertical.shares import score_sums
from vertical.shares.deals import DealPlan, count_corrected
from vertical.shares.package import deal_segment, find_evaluated


class DealOrder(BaseModel, frozen=True, extra="forbid"):
    """An order of a segment's random numbers.

    Attributes:
        problem: A problem of `vertical.problem.objectives`.
        columns: The number of columns of each party.
        decays: Whether the weights shrink in each update of a segment that trains.
        rows: The number of training rows.
        test_rows: The number of test rows.
        batch_size: The rows of an update. 0: all.
        seed: The seed of the batches.
        first_epoch: The number of the segment's first epoch in the run.
        epochs: The number of epochs.
        labelled: The party with labels.
        evaluates: Whether the segment measures the metrics.
        scores: Whether the segment scores new rows. It then has no epochs.
        rounds: Whether the segment ends with shares of the rounded weights.
    """

    problem: Literal["logistic", "ridge", "robust"]
    columns: tuple[NonNegativeInt, ...] = Field(min_length=2)
    decays: bool
    rows: PositiveInt
    test_rows: NonNegativeInt
    batch_size: NonNegativeInt
    seed: NonNegativeInt
    first_epoch: NonNegativeInt
    epochs: NonNegativeInt
    labelled: NonNegativeInt
    evaluates: bool
    scores: bool = False
    rounds: bool = False

    @classmethod
    def of(cls, plan: SegmentPlan) -> "DealOrder":
        """Return a segment's order.

        Args:
            plan: The segment's plan.
        """
        same = "problem", "columns", "rows", "test_rows", "batch_size", "seed", "first_epoch", "epochs", "rounds"
        fields = {name: getattr(plan, name) for name in same}
        return cls(
            decays=plan.weight > 0, labelled=plan.active[0], evaluates=plan.evaluate, scores=plan.score, **fields
        )

    @property
    def plan(self) -> DealPlan:
        """The plan of the deals. The rounding of weights needs the numbers of weights that shrink."""
        decays = (self.decays or self.rounds) and not self.scores
        return DealPlan(self.problem, self.columns, decays, scores=self.scores)

    @property
    def evaluated(self) -> slice | None:
        """The rows of the evaluation; None without an evaluation."""
        return find_evaluated(self.rows, self.test_rows) if self.evaluates else None

    @property
    def corrections(self) -> int:
        """The number of the last party's corrections."""
        if self.scores:
            return sum(count_corrected(self.plan.parts(len(rows))) for rows in self.batches())
        size = min(self.batch_size, self.rows) or self.rows
        full, rest = divmod(self.rows, size)
        epoch = full * count_corrected(self.plan.parts(size)) + bool(rest) * count_corrected(self.plan.parts(rest))
        count = self.epochs * epoch + self.rounds * count_corrected(self.plan.parts(0))
        if (rows := self.evaluated) is None:
            return count
        return count + count_corrected(score_sums.parts(self.plan, rows.stop - rows.start))

    def batches(self) -> Iterator[Int64[np.ndarray, "_"]]:
        """Yield the rows of each update, or of each piece of the new rows. The rounding is the last, without rows."""
        if self.scores:
            for start in range(0, self.rows, PIECE):
                yield np.arange(start, min(start + PIECE, self.rows))
            return
        schedule = Schedule(self.rows, 1, self.batch_size, self.seed)
        for epoch in range(self.first_epoch, self.first_epoch + self.epochs):
            yield from schedule.batches(epoch, 0)
        if self.rounds:
            yield np.zeros(0, np.int64)

    def deal(self, draw: Callable[[int], bytes] = secrets.token_bytes) -> list[bytes]:
        """Return each party's package (`vertical.shares.package`).

        Args:
            draw: A function that returns a number of random bytes, for the seeds. By default they are fresh and secret.
        """
        rows = self.rows, self.test_rows
        return deal_segment(self.plan, *rows, self.batches(), self.labelled, evaluates=self.evaluates, draw=draw)
