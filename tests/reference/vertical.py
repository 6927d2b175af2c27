"""Vertical training with all columns in one place, in the order of the parties' batches, for comparisons.

A vertical run with one active party and no delay, or with *synchronous* rounds of several active parties, does the
updates of `train` up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from problems.penalties import Penalty
from vertical.problem.analysis import second_moment
from vertical.problem.blocks import make_block
from vertical.problem.blocks.base import SAGA, SVRG, Features, Rows, product
from vertical.problem.objectives import Array, Objective
from vertical.problem.schedule import Schedule


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
    nonsmooth: Penalty | None = None,
    each_epoch: Callable[[int, Array], object] | None = None,
) -> Array:
    """Return the (d,) weights after `epochs` passes of SGD, SVRG or SAGA over (n, d) features and (n,) labels.

    `Schedule(n, active, batch_size, seed)` gives the batches. SVRG takes a snapshot before each epoch, SAGA fills its
    table at the start.

    Args:
        features: Dense or sparse rows.
        labels: The objective's labels.
        objective: The objective to minimise.
        algorithm: Either "sgd", "svrg" or "saga".
        step: Gamma, > 0.
        epochs: Number of epochs, >= 0.
        batch_size: The batch size of `Schedule`.
        seed: The batches' seed.
        active: m, the number of slices of an epoch's batches.
        weights: Initial weights (d,). None: zeros.
        synchronous: Whether, with m > 1, the slopes of the t-th batches of all slices are taken at the point before
            their m updates. False: each at the point after the previous update.
        frozen_columns: Columns that keep their weights, like the columns of parties without labels in AFSVRG-VP.
        nonsmooth: A penalty of the weights that are not frozen, by proximal steps.
        each_epoch: A function called after each epoch with the number of epochs done and the (d,) weights.

    Raises:
        ValueError: an argument out of range, labels that do not fit the objective or the rows, or slopes that overflow
            because the step is too large.
    """
    rows, columns = features.shape
    objective.check_labels(labels)
    if len(labels) != rows:
        raise ValueError(f"{rows:,} rows of features but {len(labels):,} labels")
    w = np.zeros(columns) if weights is None else np.array(weights, dtype=np.float64)
    if w.shape != (columns,):
        raise ValueError(f"weights must be ({columns},), got {w.shape}")
    kept = np.zeros(0, dtype=np.int64) if frozen_columns is None else np.asarray(frozen_columns, dtype=np.int64)
    if len(kept) and not 0 <= kept.min() <= kept.max() < columns:
        raise ValueError(f"frozen_columns must be 0 to {columns - 1}, got {kept.min()} to {kept.max()}")
    trained = np.setdiff1d(np.arange(columns), kept)
    if not len(trained):
        raise ValueError(f"all {columns} columns are frozen: nothing to train")
    if epochs < 0:
        raise ValueError(f"epochs must be 0 or more, got {epochs}")
    offset = product(features, np.where(np.isin(np.arange(columns), kept), w, 0.0))  # (n,)
    block = make_block(features[:, trained] if len(kept) else features, algorithm, objective, step)
    block.nonsmooth = nonsmooth
    block.set_weights(w[trained])
    schedule = Schedule(rows, active, batch_size, seed)

    def slopes(batch: Rows | None = None) -> Array:
        chosen = slice(None) if batch is None else batch
        return objective.slopes(block.partials(batch) + offset[chosen], labels[chosen])

    for epoch in range(epochs):
        if algorithm == SVRG or (algorithm == SAGA and epoch == 0):
            block.remember(slopes())
        for batches in _rounds(schedule, epoch, together=synchronous):
            thetas = [slopes(batch) for batch in batches]
            for batch, theta in zip(batches, thetas, strict=True):
                block.apply(batch, theta)
        if each_epoch is not None:
            w[trained] = block.weights
            each_epoch(epoch + 1, w.copy())
    w[trained] = block.weights
    return w


def _rounds(schedule: Schedule, epoch: int, *, together: bool) -> Iterator[list[Rows]]:
    """Yield the batches of an epoch in the order of their updates, grouped by the point of their slopes."""
    lists = [schedule.batches(epoch, place) for place in range(schedule.active)]
    for turn in range(max(map(len, lists))):
        batches = [batches[turn] for batches in lists if turn < len(batches)]
        if together:
            yield batches
        else:
            yield from ([rows] for rows in batches)


def smoothness(features: Features, objective: Objective) -> float:
    """Return an upper bound of the objective's curvature in w: bound * lmax(X' X / n) + weight.

    If X is cut by columns into blocks X_p, lmax(X' X) is at most the sum of lmax(X_p' X_p), since X X' is the sum of
    X_p X_p'.

    Returns:
        The bound, in which lmax is too large by a relative 1e-6 at most.
    """
    return objective.curvature_bound * second_moment(features, tolerance=1e-6) + objective.weight
