"""The inner loops of sparse blocks: which columns a batch touches, and the updates put off on them.

An update changes every column: the regulariser, and the mean of SVRG and SAGA, act where the batch has no entry. A
column without an entry moves by w <- w - step (mean + weight g'(w)), the *drift*, which depends on nothing but the
column itself, so it is put off until the column is needed (Schmidt, Le Roux, Bach, "Minimizing Finite Sums with the
Stochastic Average Gradient", 2017, section 4). With g'(w) = w and rho = 1 - step weight, k of them are
w rho^k - step mean (1 - rho^k) / (1 - rho).

Problem (14) has no such formula. Few drifts, or long ones, are walked one by one. Many short ones w <- w + phi(w) are
the flow, for a time of k, of the field whose flow in a time of 1 is one drift (Hairer, Lubich, Wanner, "Geometric
Numerical Integration", 2006, section IX.1, for Euler's method),

    phi - phi' phi / 2 + phi'' phi^2 / 12 + phi'^2 phi / 3 - phi'' phi' phi^2 / 6 - phi'^3 phi / 4 + ...,

and a few steps of the classical Runge-Kutta method follow it to 2e-14 of the largest weight passed: with
step weight <= 1e-4 and |phi| <= 1e-3 the terms left out are below that, and so is the error of the method when one
step covers a change of 1e-3 of the slope's and 2e-3 of the weight's own.

This module holds the NumPy form; `compiled` has the same methods for numba. What dense blocks have for numba is in
`compiled_dense`.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from problems.extras import importable

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Indices = NDArray[np.int32] | NDArray[np.int64]

KERNELS = ("auto", "numba", "numpy")

# Where drifts of problem (14) are followed as a flow: step weight and |phi| at most, what a Runge-Kutta step covers,
# the drifts that one such step must replace to be worth it, and the largest w / (1 + w^2)^2, 9 / (16 sqrt(3)).
MAX_RATE, MAX_REACH, PIECE, WORTH, MAX_SLOPE = 1e-4, 1e-3, 1e-3, 8, 0.3248


class Matrix(NamedTuple):
    """A CSR matrix (n, d), no column twice in a row."""

    indptr: Indices
    indices: Indices
    data: Floats


class Lazy(NamedTuple):
    """Weights of a sparse block, some updates of which are put off, and what the drift is made of.

    Attributes:
        w: (d,) the weights, column j as it was after `settled[j]` updates.
        settled: (d,) updates that column j has seen.
        mean: (d,) constant of the drift; (0,) for none.
        until: updates that a column is to see.
        step: gamma.
        weight: of the regulariser.
        linear: whether g'(w) = w.
    """

    w: Floats
    settled: Integers
    mean: Floats
    until: int
    step: float
    weight: float
    linear: bool


class Kernels(Protocol):
    """The inner loops. A row outside the matrix makes them return False before anything is changed."""

    def settle(self, lazy: Lazy) -> None:
        """Bring all columns to `lazy.until`."""

    def partials(self, matrix: Matrix, rows: Integers, lazy: Lazy, out: Floats) -> bool:
        """Bring the columns of the rows (b,) to `lazy.until` and write X[rows] w to `out` (b,)."""

    def apply(self, matrix: Matrix, rows: Integers, lazy: Lazy, change: Floats, share: float) -> bool:
        """Bring the columns of the rows (b,) to `lazy.until`, then take step / b X[rows]' change from them.

        `change` is (b,). The mean then gains share X[rows]' change.
        """


class DenseKernels(Protocol):
    """Partial sums and updates of dense blocks, each in one call.

    They return False before anything is changed where there are no rows to update, theta is of another length or not
    finite, a row is outside, or an array is of another type.
    """

    def partials(self, x: Floats, rows: Integers, w: Floats, out: Floats) -> bool:
        """Write X[rows] w to `out` (b,), for (n, d) x."""

    def apply(
        self,
        x: Floats,
        rows: Integers,
        theta: Floats,
        w: Floats,
        table: Floats,
        mean: Floats,
        step: float,
        weight: float,
        linear: bool,
        keep: bool,
    ) -> bool:
        """Do the update that `blocks` describes.

        Args:
            x: (n, d) features.
            rows: (b,) different rows.
            theta: (b,) slopes there.
            w: (d,) weights, changed.
            table: (n,) theta0 or alpha; (0,) for SGD.
            mean: (d,) mu or avg; (0,) for SGD.
            step: gamma.
            weight: of the regulariser.
            linear: whether g'(w) = w; else it is w / (1 + w^2)^2.
            keep: whether theta goes to the table, and its change to the mean, as SAGA has it.
        """


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


def load_kernels(name: str) -> Kernels:
    """Return the kernels called "numba" or "numpy"; "auto" is numba where it is installed.

    Raises:
        ValueError: another name.
        ImportError: numba is asked for by name and not installed.
    """
    if not _wants_numba(name):
        return NumpyKernels()
    from problems.vertical.compiled import CompiledKernels

    return CompiledKernels()


def load_dense_kernels(name: str) -> DenseKernels | None:
    """Return the kernels called "numba"; None for "numpy", which dense blocks have themselves.

    Raises:
        ValueError: as `load_kernels`.
        ImportError: as `load_kernels`.
    """
    if not _wants_numba(name):
        return None
    from problems.vertical import compiled_dense

    return compiled_dense


def _wants_numba(name: str) -> bool:
    if name not in KERNELS:
        raise ValueError(f"kernels {name!r} are not known; one of: {', '.join(KERNELS)}")
    installed = importable("numba")
    if name == "numba" and not installed:
        raise ImportError("kernels 'numba' need the package numba: install it, or choose 'numpy'")
    return installed and name != "numpy"


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
