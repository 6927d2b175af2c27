"""`kernels.Kernels` for numba: the interpreter's lock let go, compiled once and kept on disk.

Import it only where numba is installed.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import TypeVar

from problems.vertical.blocks.lazy import Floats, Indices, Integers, Lazy, Matrix

# As in `kernels`, written again because code kept on disk is made anew only when this file changes.
MAX_RATE, MAX_REACH, PIECE, WORTH, MAX_SLOPE = 1e-4, 1e-3, 1e-3, 8, 0.3248

Function = TypeVar("Function", bound=Callable[..., object])

_numba = importlib.import_module("numba")


class CompiledKernels:
    """`Kernels`, whose parts are handed over one by one because numba takes arrays faster than tuples of them."""

    def settle(self, lazy: Lazy) -> None:
        _settle(*lazy)

    def partials(self, matrix: Matrix, rows: Integers, lazy: Lazy, out: Floats) -> bool:
        return _partials(matrix.indptr, matrix.indices, matrix.data, rows, out, *lazy)

    def apply(self, matrix: Matrix, rows: Integers, lazy: Lazy, change: Floats, share: float) -> bool:
        return _apply(matrix.indptr, matrix.indices, matrix.data, rows, change, share, *lazy)


def _jit(function: Function) -> Function:
    try:
        compiled: Function = _numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder that numba may keep its code in
        compiled = _numba.njit(nogil=True)(function)
    return compiled


@_jit
def _log_keep(step: float, weight: float) -> float:
    return math.log1p(-step * weight) if step * weight < 0.5 else 0.0


@_jit
def _field(w: float, push: float, rate: float) -> float:
    square = w * w
    inverse = 1.0 / (1.0 + square)
    inverses = inverse * inverse
    phi = -(push + rate * w * inverses)
    bend = -rate * (1.0 - 3.0 * square) * inverses * inverse
    twist = -12.0 * rate * w * (square - 1.0) * inverses * inverses
    return phi * (1.0 - bend * (1 / 2 - bend * (1 / 3 - bend / 4)) + twist * phi * (1 / 12 - bend / 6))


@_jit
def _flow(w: float, push: float, count: int, pieces: int, rate: float) -> float:
    time = count / pieces
    for _ in range(pieces):
        first = _field(w, push, rate)
        second = _field(w + 0.5 * time * first, push, rate)
        third = _field(w + 0.5 * time * second, push, rate)
        fourth = _field(w + time * third, push, rate)
        w += time / 6.0 * (first + 2.0 * second + 2.0 * third + fourth)
    return w


@_jit
def _drifted(w: float, mean: float, count: int, step: float, weight: float, linear: bool, log_keep: float) -> float:
    """`count` drifts of one column, `log_keep` the logarithm of rho where rho > 1/2."""
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


@_jit
def _outside(indptr: Indices, rows: Integers) -> bool:
    for row in rows:  # noqa: SIM110
        if row < 0 or row >= len(indptr) - 1:
            return True
    return False


@_jit
def _catch_up(
    column: int,
    w: Floats,
    settled: Integers,
    mean: Floats,
    until: int,
    step: float,
    weight: float,
    linear: bool,
    log_keep: float,
) -> None:
    count = until - settled[column]
    if count > 0:
        constant = mean[column] if len(mean) else 0.0
        w[column] = _drifted(w[column], constant, count, step, weight, linear, log_keep)
        settled[column] = until


@_jit
def _settle(w: Floats, settled: Integers, mean: Floats, until: int, step: float, weight: float, linear: bool) -> None:
    log_keep = _log_keep(step, weight)
    for column in range(len(w)):
        _catch_up(column, w, settled, mean, until, step, weight, linear, log_keep)


@_jit
def _partials(
    indptr: Indices,
    indices: Indices,
    data: Floats,
    rows: Integers,
    out: Floats,
    w: Floats,
    settled: Integers,
    mean: Floats,
    until: int,
    step: float,
    weight: float,
    linear: bool,
) -> bool:
    if _outside(indptr, rows):
        return False
    log_keep = _log_keep(step, weight)
    for place in range(len(rows)):
        row = rows[place]
        total = 0.0
        for entry in range(indptr[row], indptr[row + 1]):
            column = indices[entry]
            _catch_up(column, w, settled, mean, until, step, weight, linear, log_keep)
            total += data[entry] * w[column]
        out[place] = total
    return True


@_jit
def _apply(
    indptr: Indices,
    indices: Indices,
    data: Floats,
    rows: Integers,
    change: Floats,
    share: float,
    w: Floats,
    settled: Integers,
    mean: Floats,
    until: int,
    step: float,
    weight: float,
    linear: bool,
) -> bool:
    if _outside(indptr, rows):
        return False
    log_keep = _log_keep(step, weight)
    scale = step / len(rows)
    for place in range(len(rows)):
        row = rows[place]
        for entry in range(indptr[row], indptr[row + 1]):
            column = indices[entry]
            # A column comes here first with its old weight and mean, so the drift sees neither half-changed.
            _catch_up(column, w, settled, mean, until, step, weight, linear, log_keep)
            slope = data[entry] * change[place]
            w[column] -= scale * slope
            if share != 0.0:
                mean[column] += share * slope
    return True
