"""The inner loops of sparse blocks in NumPy; `problems.vertical.blocks.lazy` says what they do."""

from __future__ import annotations

import math

import numpy as np

from problems.vertical.blocks.lazy import (
    MAX_RATE,
    MAX_REACH,
    MAX_SLOPE,
    PIECE,
    WORTH,
    Floats,
    Indices,
    Integers,
    Lazy,
    Matrix,
)


class NumpyKernels:
    """`Kernels` without numba."""

    def settle(self, lazy: Lazy) -> None:
        _catch_up(np.flatnonzero(lazy.settled < lazy.until), lazy)

    def partials(self, matrix: Matrix, rows: Integers, lazy: Lazy, out: Floats) -> bool:
        if _outside(matrix, rows):
            return False
        entries, places = _entries(matrix.indptr, rows)
        columns = matrix.indices[entries]
        _catch_up(columns, lazy)
        out[:] = np.bincount(places, weights=matrix.data[entries] * lazy.w[columns], minlength=len(rows))
        return True

    def apply(self, matrix: Matrix, rows: Integers, lazy: Lazy, change: Floats, share: float) -> bool:
        if _outside(matrix, rows):
            return False
        entries, places = _entries(matrix.indptr, rows)
        columns = matrix.indices[entries]
        _catch_up(columns, lazy)
        slopes = matrix.data[entries] * change[places]
        np.subtract.at(lazy.w, columns, slopes * (lazy.step / len(rows)))
        if share:
            np.add.at(lazy.mean, columns, slopes * share)
        return True


def _outside(matrix: Matrix, rows: Integers) -> bool:
    return bool(len(rows)) and not 0 <= rows.min() <= rows.max() < len(matrix.indptr) - 1


def _entries(indptr: Indices, rows: Integers) -> tuple[Integers, Integers]:
    """Where the entries of the rows lie, and the place in `rows` that each belongs to."""
    starts = indptr[rows].astype(np.int64)
    counts = indptr[rows + 1] - starts
    places = np.repeat(np.arange(len(rows)), counts)
    return np.arange(len(places)) + (starts - np.cumsum(counts) + counts)[places], places


def _catch_up(columns: Indices, lazy: Lazy) -> None:
    """Drift columns, which may come several times, to `lazy.until`."""
    late = columns[lazy.settled[columns] < lazy.until]
    count = lazy.until - lazy.settled[late]  # (u,) drifts to make up for
    lazy.settled[late] = lazy.until
    mean = lazy.mean[late] if len(lazy.mean) else np.zeros(len(late))
    moved = _drift if lazy.linear else _walk
    lazy.w[late] = moved(lazy.w[late], mean, count, lazy.step, lazy.weight)


def _drift(w: Floats, mean: Floats, count: Integers, step: float, weight: float) -> Floats:
    """w rho^k - step mean (1 - rho^k) / (1 - rho), rho = 1 - step weight."""
    rate = step * weight
    if rate == 0.0:
        return w - step * mean * count
    # (u,) rho^k - 1
    lost: Floats = np.expm1(count * math.log1p(-rate)) if rate < 0.5 else np.power(1.0 - rate, count) - 1.0
    drifted: Floats = w + w * lost + step * mean * lost / rate
    return drifted


def _walk(w: Floats, mean: Floats, count: Integers, step: float, weight: float) -> Floats:
    """k times w - step (mean + weight w / (1 + w^2)^2)."""
    rate, push = step * weight, step * mean
    reach = np.abs(push) + MAX_SLOPE * rate  # (u,) the longest drift
    pieces = np.ceil(count * np.maximum(rate, 0.5 * reach) / PIECE)
    flows = (rate <= MAX_RATE) & (reach <= MAX_REACH) & (count >= WORTH * pieces)
    return np.where(flows, _flow(w, push, count * flows, pieces * flows, rate), _steps(w, push, count * ~flows, rate))


def _steps(w: Floats, push: Floats, count: Integers, rate: float) -> Floats:
    """One by one, ended where a drift changes nothing."""
    w = w.copy()
    moving = np.flatnonzero(count)
    taken = 0
    while len(moving):
        before = w[moving]
        after = before - (push[moving] + rate * before / np.square(1.0 + before * before))
        w[moving] = after
        taken += 1
        moving = moving[(count[moving] > taken) & (after != before)]
    return w


def _flow(w: Floats, push: Floats, count: Integers, pieces: Floats, rate: float) -> Floats:
    """By the classical Runge-Kutta method in `pieces` steps a column."""
    w = w.copy()
    moving = np.flatnonzero(pieces)
    taken = 0
    while len(moving):
        start, constant = w[moving], push[moving]
        time = count[moving] / pieces[moving]
        first = _field(start, constant, rate)
        second = _field(start + 0.5 * time * first, constant, rate)
        third = _field(start + 0.5 * time * second, constant, rate)
        fourth = _field(start + time * third, constant, rate)
        w[moving] = start + time / 6.0 * (first + 2.0 * second + 2.0 * third + fourth)
        taken += 1
        moving = moving[pieces[moving] > taken]
    return w


def _field(w: Floats, push: Floats, rate: float) -> Floats:
    """The field whose flow in a time of 1 is one drift."""
    squares = w * w
    inverse = 1.0 / (1.0 + squares)
    phi = -(push + rate * w * inverse**2)
    bend = -rate * (1.0 - 3.0 * squares) * inverse**3  # phi'
    twist = -12.0 * rate * w * (squares - 1.0) * inverse**4  # phi''
    field: Floats = phi * (1.0 - bend * (1 / 2 - bend * (1 / 3 - bend / 4)) + twist * phi * (1 / 12 - bend / 6))
    return field
