"""The loops of dense blocks: partial sums and updates, each in one call.

Each function is compiled for one signature as this module is imported, so that no update waits for a compiler. Rows and
slopes may be read-only, strided or unaligned, and are not copied. A call with invalid arguments returns False and
changes nothing.
"""

from __future__ import annotations

import math

import numpy as np
from numba import types
from numpy.typing import NDArray

from problems.vertical.blocks.jit import jit

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_MATRIX = types.Array(types.float64, 2, "C", readonly=True)
_OWN = types.Array(types.float64, 1, "C")
_SLOPES = types.Array(types.float64, 1, "A", readonly=True, aligned=False)
_ROWS = types.Array(types.int64, 1, "A", readonly=True, aligned=False)
_NUMBER, _TRUTH = types.float64, types.boolean


# `fastmath` lets the sum run in any order, so that it can be vectorised.
@jit(_TRUTH(_MATRIX, _ROWS, _OWN, _OWN), fastmath={"reassoc", "contract"})
def partials(x: Floats, rows: Integers, w: Floats, out: Floats) -> bool:
    """Write X[rows] w to `out` (b,), for (n, d) x; False where a row is outside."""
    for place in range(len(rows)):
        if rows[place] < 0 or rows[place] >= len(x):
            return False
    for place in range(len(rows)):
        row = x[rows[place]]
        total = 0.0
        for column in range(len(w)):
            total += row[column] * w[column]
        out[place] = total
    return True


@jit(_TRUTH(_MATRIX, _ROWS, _SLOPES, _OWN, _OWN, _OWN, _NUMBER, _NUMBER, _TRUTH, _TRUTH))
def apply(
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
    """Do the update that `problems.vertical.blocks.base` describes.

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
        keep: whether to write theta to the table, and its change to the mean, as in SAGA.

    Returns:
        False without rows, where a row is outside, or where theta is of another length or not finite.
    """
    count, relative = len(rows), len(table) > 0
    if count == 0 or len(theta) != count:
        return False
    for place in range(count):
        if rows[place] < 0 or rows[place] >= len(x) or not math.isfinite(theta[place]):
            return False
    total = np.zeros(len(w))  # (d,) X_B' change
    for place in range(count):
        row, change = x[rows[place]], theta[place]
        if relative:
            change -= table[rows[place]]
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
        for place in range(count):
            table[rows[place]] = theta[place]
    return True
