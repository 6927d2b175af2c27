"""A block of dense columns, whose partial sums and updates are loops that numba compiles.

The loops are compiled for one signature when this module is imported, so no update waits for the compiler. Rows and
slopes may be read-only, strided or unaligned arrays, and are not copied. A loop with invalid arguments returns False
and changes nothing.
"""

import math

import numpy as np
from jaxtyping import Float64, Int64
from numba import types

from problems.kernels import jit
from vertical.problem.blocks.base import SAGA, SGD, Block, Rows
from vertical.problem.objectives import Array, Objective

_MATRIX = types.Array(types.float64, 2, "C", readonly=True)
_OWN = types.Array(types.float64, 1, "C")
_SLOPES = types.Array(types.float64, 1, "A", readonly=True, aligned=False)
_ROWS = types.Array(types.int64, 1, "A", readonly=True, aligned=False)
_NUMBER, _TRUTH = types.float64, types.boolean

_NOTHING, _NO_ROWS = np.zeros(0), np.zeros(0, dtype=np.int64)


class DenseBlock(Block):
    """A block of (n, d) features in a NumPy array."""

    def __init__(self, features: Float64[np.ndarray, "n d"], algorithm: str, objective: Objective, step: float) -> None:
        features = np.ascontiguousarray(features, dtype=np.float64)
        if features.ndim != 2:
            raise ValueError(f"features must be (n, d), got {features.shape}")
        super().__init__(features, algorithm, objective, step)
        self._x = features
        self._weight, self._linear = float(objective.weight), objective.linear_decay
        # calls without effect, since a loop's first call is slow
        self.partials(_NO_ROWS)
        self._update(_NO_ROWS, _NOTHING, _NOTHING, _NOTHING)

    def partials(self, rows: Int64[np.ndarray, "b"] | None = None) -> Float64[np.ndarray, "b"]:
        if rows is None:
            products: Array = self._x.dot(self._w)
            return products
        sums = np.empty(len(rows))
        if not _partials(self._x, rows, self._w, sums):
            raise self._outside(rows)
        return sums

    def apply(self, rows: Int64[np.ndarray, "b"], theta: Float64[np.ndarray, "b"]) -> None:
        table, mean = (_NOTHING, _NOTHING) if self.algorithm == SGD else (self._theta, self._mean)
        if table is None or mean is None:
            raise self._needs_theta()
        theta = np.asarray(theta, dtype=np.float64)
        if not self._update(rows, theta, table, mean):
            self._slopes(theta, len(rows))
            raise self._outside(rows)
        self._shrink()

    def _update(self, rows: Rows, theta: Array, table: Array, mean: Array) -> bool:
        keep = self.algorithm == SAGA
        return _apply(self._x, rows, theta, self._w, table, mean, self.step, self._weight, self._linear, keep)

    def _settle(self) -> None:
        """Do nothing, since no update is postponed."""


# `fastmath` allows any order of the sum, so the compiler can vectorise it
@jit(_TRUTH(_MATRIX, _ROWS, _OWN, _OWN), fastmath={"reassoc", "contract"})
def _partials(x: Array, rows: Rows, w: Array, out: Array) -> bool:
    """Write X[rows] w to `out` (b,), for (n, d) x. Return False if a row is out of range."""
    for index in range(len(rows)):
        if rows[index] < 0 or rows[index] >= len(x):
            return False
    for index in range(len(rows)):
        row = x[rows[index]]
        total = 0.0
        for column in range(len(w)):
            total += row[column] * w[column]
        out[index] = total
    return True


@jit(_TRUTH(_MATRIX, _ROWS, _SLOPES, _OWN, _OWN, _OWN, _NUMBER, _NUMBER, _TRUTH, _TRUTH))
def _apply(
    x: Array,
    rows: Rows,
    theta: Array,
    w: Array,
    table: Array,
    mean: Array,
    step: float,
    weight: float,
    linear: bool,
    keep: bool,
) -> bool:
    """Apply the update of `vertical.problem.blocks.base` to the weights w (d,), with features x (n, d).

    Args:
        x: The features.
        rows: The (b,) rows of the batch, all different.
        theta: The (b,) slopes of the rows.
        w: The weights, which are changed.
        table: The (n,) stored slopes of SVRG or SAGA; (0,) for SGD.
        mean: The (d,) product X' table / n; (0,) for SGD.
        step: The learning rate.
        weight: The regulariser's weight.
        linear: Whether g'(w) = w. If not, g'(w) = w / (1 + w^2)^2.
        keep: Whether to write theta to the table and to change the mean accordingly, as in SAGA.

    Returns:
        False if there are no rows, a row is out of range, or theta has another length or is not finite.
    """
    count, relative = len(rows), len(table) > 0
    if count == 0 or len(theta) != count:
        return False
    for index in range(count):
        if rows[index] < 0 or rows[index] >= len(x) or not math.isfinite(theta[index]):
            return False
    total = np.zeros(len(w))  # (d,) X_B' change
    for index in range(count):
        row, change = x[rows[index]], theta[index]
        if relative:
            change -= table[rows[index]]
        for column in range(len(w)):
            total[column] += change * row[column]
    for column in range(len(w)):
        old = w[column]
        direction = total[column] / count
        if relative:
            direction += mean[column]
        if linear:
            direction += weight * old
        else:
            square = 1.0 + old * old
            direction += weight * old / (square * square)
        w[column] = old - step * direction
    if keep:
        for column in range(len(w)):
            mean[column] += total[column] / len(x)
        for index in range(count):
            table[rows[index]] = theta[index]
    return True
