"""What the kernels of sparse and dense blocks take, and what they promise.

The inner loops of sparse blocks: which columns a batch touches, and the updates put off on them.

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

`kernels` has the sparse ones in NumPy, `compiled` for numba; what dense blocks have for numba is in `compiled_dense`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Indices = NDArray[np.int32] | NDArray[np.int64]

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
