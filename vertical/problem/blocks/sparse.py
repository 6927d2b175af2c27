"""A block of sparse columns. The cost of an update grows with the entries of the batch, not with the number of columns.

An update changes every column: the regulariser, and the mean of SVRG and SAGA, also act on columns without entries in
the batch. Such a column moves by w <- w - step (mean + weight g'(w)), the *drift*. The drift depends only on the column
itself, so it is postponed until the column is needed (Schmidt, Le Roux, Bach, "Minimizing Finite Sums with the
Stochastic Average Gradient", 2017, section 4). With g'(w) = w and rho = 1 - step weight, k drifts together give
w rho^k - step mean (1 - rho^k) / (1 - rho).

Problem (14) of the paper, `nonconvex-logistic`, has no such formula. A few drifts, or long drifts, are applied one by
one. Many short drifts are computed together as the flow of a differential equation, by Runge-Kutta steps.
docs/vertical-theory.md ("Sparse columns") derives the equation.

With a nonsmooth penalty nothing is postponed, since the proximal step needs every column.

The compiled functions have the fields of `Lazy` as separate arguments, because numba handles arrays faster than tuples
of arrays. Their arguments `indptr`, `indices` and `data` are a CSR matrix (n, d) with unique columns in each row. If a
row is out of range, they return False before they change anything.
"""

import math
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray

from problems.kernels import jit
from vertical.problem.blocks.base import SAGA, SGD, Block, Rows, SparseRows, canonical, product
from vertical.problem.objectives import Array, Objective

Indices = NDArray[np.int32] | NDArray[np.int64]
Matrix: TypeAlias = "tuple[Indices, Indices, Array]"

# Limits for computing drifts of problem (14) as a flow: the largest step * weight, the largest drift, the length of a
# Runge-Kutta step, and the minimum number of drifts that a step must replace. The last number is the maximum of
# w / (1 + w^2)^2, 9 / (16 sqrt(3)).
MAX_RATE, MAX_REACH, PIECE, WORTH, MAX_SLOPE = 1e-4, 1e-3, 1e-3, 8, 0.3248

_NO_MEAN = np.zeros(0)


class Lazy(NamedTuple):
    """The weights of a sparse block, with some updates postponed, and the terms of the drift.

    Attributes:
        w: The weights. Column j has its value after `settled[j]` updates.
        settled: The number of updates that each column includes.
        mean: The constant of each column's drift. (0,): no constant.
        until: The number of updates that a column must include before it is used.
        step: The learning rate.
        weight: The regulariser's weight.
        linear: Whether g'(w) = w.
    """

    w: Float64[np.ndarray, "d"]
    settled: Int64[np.ndarray, "d"]
    mean: Array
    until: int
    step: float
    weight: float
    linear: bool


class SparseBlock(Block):
    """A block of (n, d) CSR features with postponed updates.

    `partials` of all rows, `predict`, `penalty`, `weights`, `remember` and every setter first apply all postponed
    updates.
    """

    def __init__(self, features: SparseRows, algorithm: str, objective: Objective, step: float) -> None:
        if features.ndim != 2:
            raise ValueError(f"features must be (n, d), got {features.shape}")
        matrix = canonical(features)
        super().__init__(matrix, algorithm, objective, step)
        self._matrix: Matrix = (matrix.indptr, matrix.indices, matrix.data)
        self._done = 0  # updates so far
        self._settled = np.zeros(self.columns, dtype=np.int64)
        self._late = False
        self._compile()

    def partials(self, rows: Int64[np.ndarray, "b"] | None = None) -> Float64[np.ndarray, "b"]:
        if rows is None:
            self._settle()
            return product(self._features, self._w)
        rows, out = _copy(rows), np.empty(len(rows))
        indptr, indices, data = self._matrix
        if not _partials(indptr, indices, data, rows, out, *self._lazy()):
            raise self._outside(rows)
        return out

    def apply(self, rows: Int64[np.ndarray, "b"], theta: Float64[np.ndarray, "b"]) -> None:
        theta = self._slopes(theta, len(rows))
        rows, change, share = _copy(rows), theta.copy(), 0.0
        if self.algorithm != SGD:
            if self._theta is None:
                raise self._needs_theta()
            change = theta - self._theta.take(rows, mode="clip")
            share = 1.0 / self.rows if self.algorithm == SAGA else 0.0
        self._done += 1
        indptr, indices, data = self._matrix
        if not _apply(indptr, indices, data, rows, change, share, *self._lazy()):
            self._done -= 1
            raise self._outside(rows)
        self._late = True
        if share and self._theta is not None:
            self._theta[rows] = theta
        self._shrink()

    def _compile(self) -> None:
        """Call all compiled functions once, without effect, so numba compiles them before the first update."""
        rows, nothing = np.zeros(1, dtype=np.int64), np.zeros(1)
        self.partials(rows)
        indptr, indices, data = self._matrix
        _apply(indptr, indices, data, rows, nothing, 0.0, *self._lazy())
        settle(*self._lazy())

    def _lazy(self) -> Lazy:
        mean = _NO_MEAN if self._mean is None else self._mean
        objective = self.objective
        return Lazy(
            self._w, self._settled, mean, self._done, self.step, float(objective.weight), objective.linear_decay
        )

    def _settle(self) -> None:
        if self._late:
            settle(*self._lazy())
            self._late = False


def _copy(rows: Int64[np.ndarray, "b"]) -> Int64[np.ndarray, "b"]:
    """Return a copy of the array type for which functions are compiled. Read-only and strided arrays differ from it."""
    return np.array(rows, dtype=np.int64)


@jit()
def _log_keep(step: float, weight: float) -> float:
    return math.log1p(-step * weight) if step * weight < 0.5 else 0.0


@jit()
def _field(w: float, push: float, rate: float) -> float:
    """Return the right-hand side of the differential equation whose solution after time 1 is a drift."""
    square = w * w
    inverse = 1.0 / (1.0 + square)
    inverses = inverse * inverse
    phi = -(push + rate * w * inverses)
    bend = -rate * (1.0 - 3.0 * square) * inverses * inverse
    twist = -12.0 * rate * w * (square - 1.0) * inverses * inverses
    return phi * (1.0 - bend * (1 / 2 - bend * (1 / 3 - bend / 4)) + twist * phi * (1 / 12 - bend / 6))


@jit()
def _flow(w: float, push: float, count: int, pieces: int, rate: float) -> float:
    """Solve the differential equation of the drift for a time of `count`, by `pieces` classical Runge-Kutta steps."""
    time = count / pieces
    for _ in range(pieces):
        first = _field(w, push, rate)
        second = _field(w + 0.5 * time * first, push, rate)
        third = _field(w + 0.5 * time * second, push, rate)
        fourth = _field(w + time * third, push, rate)
        w += time / 6.0 * (first + 2.0 * second + 2.0 * third + fourth)
    return w


@jit()
def _drift(w: float, mean: float, count: int, step: float, weight: float, linear: bool, log_keep: float) -> float:
    """Apply `count` drifts to one column. `log_keep` is the logarithm of rho if rho > 1/2."""
    rate = step * weight
    if linear:
        if count == 1 or rate == 0.0:
            return w * (1.0 - rate) - step * mean * count
        lost = math.expm1(count * log_keep) if rate < 0.5 else (1.0 - rate) ** count - 1.0  # rho^k - 1
        return w + w * lost + step * mean * lost / rate
    push = step * mean
    if w == 0.0 and push == 0.0:
        return w
    reach = abs(push) + MAX_SLOPE * rate
    if rate <= MAX_RATE and reach <= MAX_REACH and count >= WORTH:
        pieces = math.ceil(count * max(rate, 0.5 * reach) / PIECE)
        if count >= WORTH * pieces:
            return _flow(w, push, count, pieces, rate)
    for _ in range(count):
        square = 1.0 + w * w
        after = w - (push + rate * w / (square * square))
        if after == w:
            break
        w = after
    return w


@jit()
def _outside(indptr: Indices, rows: Rows) -> bool:
    for row in rows:  # noqa: SIM110
        if row < 0 or row >= len(indptr) - 1:
            return True
    return False


@jit()
def _catch_up(
    column: int,
    w: Array,
    settled: Rows,
    mean: Array,
    until: int,
    step: float,
    weight: float,
    linear: bool,
    log_keep: float,
) -> None:
    count = until - settled[column]
    if count > 0:
        constant = mean[column] if len(mean) else 0.0
        w[column] = _drift(w[column], constant, count, step, weight, linear, log_keep)
        settled[column] = until


@jit()
def settle(w: Array, settled: Rows, mean: Array, until: int, step: float, weight: float, linear: bool) -> None:
    """Apply the postponed updates of all columns, up to update `until`."""
    log_keep = _log_keep(step, weight)
    for column in range(len(w)):
        _catch_up(column, w, settled, mean, until, step, weight, linear, log_keep)


@jit()
def _partials(
    indptr: Indices,
    indices: Indices,
    data: Array,
    rows: Rows,
    out: Array,
    w: Array,
    settled: Rows,
    mean: Array,
    until: int,
    step: float,
    weight: float,
    linear: bool,
) -> bool:
    """Apply the postponed updates of the columns of rows (b,), and write X[rows] w to `out` (b,)."""
    if _outside(indptr, rows):
        return False
    log_keep = _log_keep(step, weight)
    for index in range(len(rows)):
        row = rows[index]
        total = 0.0
        for entry in range(indptr[row], indptr[row + 1]):
            column = indices[entry]
            _catch_up(column, w, settled, mean, until, step, weight, linear, log_keep)
            total += data[entry] * w[column]
        out[index] = total
    return True


@jit()
def _apply(
    indptr: Indices,
    indices: Indices,
    data: Array,
    rows: Rows,
    change: Array,
    share: float,
    w: Array,
    settled: Rows,
    mean: Array,
    until: int,
    step: float,
    weight: float,
    linear: bool,
) -> bool:
    """Apply the postponed updates of the columns of rows (b,), then an update of these columns.

    The update subtracts step / b X[rows]' change from the weights, and adds share X[rows]' change to the mean.
    """
    if _outside(indptr, rows):
        return False
    log_keep = _log_keep(step, weight)
    scale = step / len(rows)
    for index in range(len(rows)):
        row = rows[index]
        for entry in range(indptr[row], indptr[row + 1]):
            column = indices[entry]
            # The first entry of a column applies its postponed updates, before the weight or the mean change.
            _catch_up(column, w, settled, mean, until, step, weight, linear, log_keep)
            slope = data[entry] * change[index]
            w[column] -= scale * slope
            if share != 0.0:
                mean[column] += share * slope
    return True
