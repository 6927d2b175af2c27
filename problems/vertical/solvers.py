"""The same problems with all columns in one place: training in the order of the parties' batches.

What a vertical run is compared with: one active party without delay, and *synchronous* rounds of several, do the
updates of `train` to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from problems.vertical.analysis import gradient, largest_eigenvalue, largest_step, smoothness, value
from problems.vertical.blocks import make_block
from problems.vertical.blocks.base import SAGA, SVRG, Block, Features, Rows, product
from problems.vertical.minimum import minimum
from problems.vertical.objectives import Array, Objective
from problems.vertical.schedule import Schedule

__all__ = [
    "Trace",
    "gradient",
    "largest_eigenvalue",
    "largest_step",
    "minimum",
    "smoothness",
    "trace",
    "train",
    "value",
]


@dataclass
class Trace:
    """What `trace` saw.

    Attributes:
        weights: (d,) at the end.
        objective: (epoch, f) at the start, as epoch 0, and after each epoch that was asked for.
    """

    weights: Array
    objective: list[tuple[int, float]] = field(default_factory=list)


def train(
    features: Features,
    labels: Array,
    objective: Objective,
    algorithm: str,
    *,
    step: float,
    epochs: int,
    batch_size: int,
    seed: int,
    active: int = 1,
    weights: Array | None = None,
    synchronous: bool = True,
    frozen_columns: NDArray[np.int64] | None = None,
) -> Array:
    """Return the (d,) weights after `epochs` passes of SGD, SVRG or SAGA over (n, d) features and (n,) labels.

    Batches are those of `Schedule(n, active, batch_size, seed)`. SVRG takes a snapshot before each epoch, SAGA fills
    its table at the start.

    Args:
        features: dense or sparse.
        labels: as the objective has them.
        objective: what to minimise.
        algorithm: "sgd", "svrg" or "saga".
        step: gamma, > 0.
        epochs: >= 0.
        batch_size: as `Schedule` has it.
        seed: of the batches.
        active: m, the slices that an epoch's batches come from.
        weights: (d,) to begin with; None for zeros.
        synchronous: with m > 1, take the slopes of the t-th batches of all slices at one point before the m updates;
            else at the point after the update before it.
        frozen_columns: that keep their weights, as where a party without labels never updates (AFSVRG-VP).

    Raises:
        ValueError: an argument out of range, labels that do not fit the objective or the rows, or slopes that
            overflow because the step is too large.
    """
    run = _Run(features, labels, objective, algorithm, step, weights, frozen_columns)
    for _ in run.epochs(Schedule(len(labels), active, batch_size, seed), epochs, synchronous):
        pass
    return run.weights


def trace(
    features: Features,
    labels: Array,
    objective: Objective,
    algorithm: str,
    *,
    step: float,
    epochs: int,
    batch_size: int,
    seed: int,
    active: int = 1,
    weights: Array | None = None,
    synchronous: bool = True,
    frozen_columns: NDArray[np.int64] | None = None,
    every: int = 1,
) -> Trace:
    """Do as `train` does and note f at the start, after each `every`-th epoch and at the end.

    Raises:
        ValueError: as `train`, or `every` below 1.
    """
    if every < 1:
        raise ValueError(f"every must be 1 or more epochs, got {every}")
    run = _Run(features, labels, objective, algorithm, step, weights, frozen_columns)
    seen = [(0, value(features, labels, objective, run.weights))]
    for done in run.epochs(Schedule(len(labels), active, batch_size, seed), epochs, synchronous):
        if done % every == 0 or done == epochs:
            seen.append((done, value(features, labels, objective, run.weights)))
    return Trace(run.weights, seen)


class _Run:
    """A block of the columns that are trained, beside those that are not."""

    def __init__(
        self,
        features: Features,
        labels: Array,
        objective: Objective,
        algorithm: str,
        step: float,
        weights: Array | None,
        frozen: NDArray[np.int64] | None,
    ) -> None:
        rows, columns = features.shape
        objective.check_labels(labels)
        if len(labels) != rows:
            raise ValueError(f"{rows:,} rows of features but {len(labels):,} labels")
        start = np.zeros(columns) if weights is None else np.array(weights, dtype=np.float64)
        if start.shape != (columns,):
            raise ValueError(f"weights must be ({columns},), got {start.shape}")
        kept = np.zeros(0, dtype=np.int64) if frozen is None else np.asarray(frozen, dtype=np.int64)
        if len(kept) and not 0 <= kept.min() <= kept.max() < columns:
            raise ValueError(f"frozen_columns must be 0 to {columns - 1}, got {kept.min()} to {kept.max()}")
        self._trained = np.setdiff1d(np.arange(columns), kept)
        if not len(self._trained):
            raise ValueError(f"all {columns} columns are frozen: nothing to train")
        self._start, self._labels, self._objective, self._algorithm = start, labels, objective, algorithm
        self._offset = product(features, np.where(np.isin(np.arange(columns), kept), start, 0.0))  # (n,)
        mine = features if not len(kept) else features[:, self._trained]
        self._block: Block = make_block(mine, algorithm, objective, step)
        self._block.set_weights(start[self._trained])

    @property
    def weights(self) -> Array:
        """(d,) of all columns."""
        weights = self._start.copy()
        weights[self._trained] = self._block.weights
        return weights

    def epochs(self, schedule: Schedule, count: int, synchronous: bool) -> Iterator[int]:
        """Train for `count` epochs, and yield after each how many are done."""
        if count < 0:
            raise ValueError(f"epochs must be 0 or more, got {count}")
        for epoch in range(count):
            if self._algorithm == SVRG or (self._algorithm == SAGA and epoch == 0):
                self._block.remember(self._slopes(None))
            for batches in _rounds(schedule, epoch, together=synchronous):
                thetas = [self._slopes(rows) for rows in batches]
                for rows, theta in zip(batches, thetas, strict=True):
                    self._block.apply(rows, theta)
            yield epoch + 1

    def _slopes(self, rows: Rows | None) -> Array:
        partials = self._block.partials(rows)
        offset, labels = (self._offset, self._labels) if rows is None else (self._offset[rows], self._labels[rows])
        return self._objective.slopes(partials + offset, labels)


def _rounds(schedule: Schedule, epoch: int, *, together: bool) -> Iterator[list[Rows]]:
    """The batches of an epoch in order of their updates, those together that are taken at one point."""
    lists = [schedule.batches(epoch, place) for place in range(schedule.active)]
    for turn in range(max(map(len, lists))):
        batches = [batches[turn] for batches in lists if turn < len(batches)]
        if together:
            yield batches
        else:
            yield from ([rows] for rows in batches)
