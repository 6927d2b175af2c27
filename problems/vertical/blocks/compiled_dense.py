"""`kernels.DenseKernels` for numba, as functions: the interpreter's lock let go, compiled once and kept on disk.

Each function is compiled for one signature as this module is imported, and for no other, so that no update waits for a
compiler. Rows and slopes are read where they lie, read-only, strided or unaligned. Import it only where numba is
installed.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from problems.vertical.blocks.lazy import Floats, Integers

Function = TypeVar("Function", bound=Callable[..., object])

_numba = importlib.import_module("numba")
_types = _numba.types
_MATRIX = _types.Array(_types.float64, 2, "C", readonly=True)
_OWN = _types.Array(_types.float64, 1, "C")
_SLOPES = _types.Array(_types.float64, 1, "A", readonly=True, aligned=False)
_ROWS = _types.Array(_types.int64, 1, "A", readonly=True, aligned=False)
_NUMBER, _TRUTH = _types.float64, _types.boolean


def _jit(*arguments: object, **options: object) -> Callable[[Function], Function]:
    signature = _TRUTH(*arguments)

    def compiled(function: Function) -> Function:
        try:
            made: Function = _numba.njit(signature, nogil=True, cache=True, **options)(function)
        except RuntimeError:  # no folder that numba may keep its code in
            made = _numba.njit(signature, nogil=True, **options)(function)
        return made

    return compiled


def partials(x: Floats, rows: Integers, w: Floats, out: Floats) -> bool:
    try:
        return _partials(x, rows, w, out)
    except TypeError:  # an array of another type
        return False


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
    try:
        return _apply(x, rows, theta, w, table, mean, step, weight, linear, keep)
    except TypeError:
        return False


# A sum in any order, else it cannot be vectorised.
@_jit(_MATRIX, _ROWS, _OWN, _OWN, fastmath={"reassoc", "contract"})
def _partials(x: Floats, rows: Integers, w: Floats, out: Floats) -> bool:
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


@_jit(_MATRIX, _ROWS, _SLOPES, _OWN, _OWN, _OWN, _NUMBER, _NUMBER, _TRUTH, _TRUTH)
def _apply(
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
