"""A party's columns, the weights on them and the state of its algorithm.

`problems.vertical.updates` has the updates as formulas; here they are compiled where they can be, and checked.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from problems.vertical.kernels import load_dense_kernels
from problems.vertical.objectives import Array, Objective
from problems.vertical.updates import update_block

SGD, SVRG, SAGA = "sgd", "svrg", "saga"
ALGORITHMS = (SGD, SVRG, SAGA)

_NOTHING, _NO_ROWS = np.zeros(0), np.zeros(0, dtype=np.int64)

Rows = NDArray[np.int64]
SparseRows: TypeAlias = "sparse.csr_array[np.float64]"
Features: TypeAlias = "Array | SparseRows"


class Block(ABC):
    """A party's columns of the training rows, with its weights, zero at first.

    Not safe for threads: one update or sum at a time.

    Attributes:
        rows: n.
        columns: d.
        algorithm: one of `ALGORITHMS`.
        objective: whose regulariser the updates apply.
        step: gamma.
    """

    def __init__(self, rows: int, columns: int, algorithm: str, objective: Objective, step: float) -> None:
        if not (rows and columns):
            raise ValueError(f"a block needs rows and columns, got {rows:,} x {columns:,}")
        if algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm {algorithm!r} is not known; one of: {', '.join(ALGORITHMS)}")
        self.rows, self.columns = rows, columns
        self.algorithm, self.objective = algorithm, objective
        self.step = _checked_step(step)
        self._w = np.zeros(columns)
        self._theta: Array | None = None  # (n,) theta0 of SVRG, alpha of SAGA
        self._mean: Array | None = None  # (d,) mu of SVRG, avg of SAGA

    @property
    def weights(self) -> Array:
        """(d,) a copy of the weights, every update applied in full."""
        self._settle()
        return self._w.copy()

    @property
    def table(self) -> Array | None:
        """(n,) a copy of SAGA's alpha; None before `remember`, and of the other algorithms."""
        return self._theta.copy() if self.algorithm == SAGA and self._theta is not None else None

    def set_weights(self, weights: Array) -> None:
        """Put (d,) weights in place of those there are; table and snapshot stay.

        Raises:
            ValueError: another shape, or a weight that is not finite.
        """
        weights = np.asarray(weights, dtype=np.float64)
        if weights.shape != (self.columns,) or not np.isfinite(weights).all():
            raise ValueError(f"weights must be {self.columns:,} finite numbers, got {_nature(weights)}")
        self._settle()
        self._w[:] = weights

    def set_step(self, step: float) -> None:
        """Take another step from the next update on.

        Raises:
            ValueError: a step that is not above 0 and finite.
        """
        step = _checked_step(step)
        self._settle()
        self.step = step

    def remember(self, theta: Array) -> None:
        """Take the (n,) slopes of all rows at this point as SVRG's snapshot, or as SAGA's table.

        Raises:
            ValueError: of SGD, which remembers nothing; theta of another length or not finite.
        """
        if self.algorithm == SGD:
            raise ValueError("sgd remembers no slopes: only svrg and saga do")
        theta = self._slopes(theta, self.rows).copy()
        self._settle()
        self._theta, self._mean = theta, self._transposed(theta) / self.rows

    def penalty(self) -> float:
        """weight * sum_j g(w_j)."""
        self._settle()
        return self.objective.penalty(self._w)

    @abstractmethod
    def partials(self, rows: Rows | None = None) -> Array:
        """(b,) X[rows] w; None: of all rows, (n,).

        Raises:
            ValueError: a row outside 0 .. n - 1.
        """

    @abstractmethod
    def apply(self, rows: Rows, theta: Array) -> None:
        """Do the algorithm's update with (b,) different rows and the (b,) slopes there.

        Raises:
            ValueError: theta of another length than rows, empty or not finite, a row outside 0 .. n - 1, or SVRG or
                SAGA before `remember`.
        """

    @abstractmethod
    def predict(self, features: Features) -> Array:
        """(k,) features @ weights, for (k, d) other rows of the same columns.

        Raises:
            ValueError: another number of columns.
        """

    @abstractmethod
    def _transposed(self, theta: Array) -> Array:
        """(d,) X' theta."""

    @abstractmethod
    def _settle(self) -> None:
        """Apply whatever updates were put off."""

    def _slopes(self, theta: Array, length: int) -> Array:
        theta = np.asarray(theta, dtype=np.float64)
        if theta.shape != (length,) or not length or not np.isfinite(theta).all():
            raise ValueError(f"theta must be {length or '1 or more'} finite numbers, got {_nature(theta)}")
        return theta

    def _needs_theta(self) -> ValueError:
        what = "a snapshot" if self.algorithm == SVRG else "a table"
        return ValueError(f"{self.algorithm} needs {what} before its first update: call remember")

    def _outside(self, rows: Rows) -> ValueError:
        return ValueError(f"rows must be 0 to {self.rows - 1:,}, got {rows.min()} to {rows.max()}")

    def _check_columns(self, features: Features) -> None:
        if features.ndim != 2 or features.shape[1] != self.columns:
            raise ValueError(f"features must be (k, {self.columns}), got {features.shape}")


class DenseBlock(Block):
    """A block of (n, d) float64 features in memory.

    With numba an update is one call of `compiled_dense`, which is the faster at any width. What that refuses, the NumPy
    code does or names.
    """

    def __init__(self, features: Array, algorithm: str, objective: Objective, step: float, kernels: str) -> None:
        features = np.ascontiguousarray(features, dtype=np.float64)
        if features.ndim != 2:
            raise ValueError(f"features must be (n, d), got {features.shape}")
        super().__init__(features.shape[0], features.shape[1], algorithm, objective, step)
        if not np.isfinite(features).all():
            raise ValueError(f"features must be finite, {int((~np.isfinite(features)).sum()):,} are not")
        self._x = features
        self._weight, self._linear = float(objective.weight), objective.linear_decay
        self._keeps = algorithm == SAGA
        self._compiled = load_dense_kernels(kernels)
        if self._compiled is not None:  # called once, to no effect, so that no update waits for what a first call does
            self.partials(_NO_ROWS)
            self._compiled.apply(
                features, _NO_ROWS, _NOTHING, self._w, _NOTHING, _NOTHING, self.step, self._weight, self._linear, False
            )

    def partials(self, rows: Rows | None = None) -> Array:
        if rows is not None and self._compiled is not None:
            sums = np.empty(len(rows))
            if self._compiled.partials(self._x, rows, self._w, sums):
                return sums
        products: Array = (self._x if rows is None else self._taken(rows)).dot(self._w)
        return products

    def apply(self, rows: Rows, theta: Array) -> None:
        table, mean = (_NOTHING, _NOTHING) if self.algorithm == SGD else (self._theta, self._mean)
        if (
            self._compiled is not None
            and table is not None
            and mean is not None
            and self._compiled.apply(
                self._x, rows, theta, self._w, table, mean, self.step, self._weight, self._linear, self._keeps
            )
        ):
            return
        theta = self._slopes(theta, len(rows))
        if self.algorithm != SGD and self._theta is None:
            raise self._needs_theta()
        sampled, slope = self._taken(rows), self.objective.penalty_slope(self._w)
        update_block(
            self._w, sampled, rows, theta, self.step, slope, self._theta, self._mean, keeps=self.algorithm == SAGA
        )

    def predict(self, features: Features) -> Array:
        self._check_columns(features)
        return product(features, self._w)

    def _taken(self, rows: Rows) -> Array:
        if rows.size and rows.min() < 0:
            raise self._outside(rows)
        try:
            return self._x.take(rows, axis=0)
        except IndexError:
            raise self._outside(rows) from None

    def _transposed(self, theta: Array) -> Array:
        return transposed_product(self._x, theta)

    def _settle(self) -> None:
        """Nothing is put off."""


def product(features: Features, weights: Array) -> Array:
    """(k,) features @ weights, of dense or sparse (k, d) features."""
    return cast(Array, features @ weights)


def transposed_product(features: Features, values: Array) -> Array:
    """(d,) features' values, of dense or sparse (n, d) features and (n,) values."""
    return cast(Array, features.T @ values)


def make_block(
    features: Features,
    algorithm: str,
    objective: Objective,
    step: float,
    *,
    kernels: str = "auto",
) -> Block:
    """Return the block of (n, d) features, dense or sparse as they are.

    Args:
        features: an array or a SciPy sparse matrix of any format. Kept without a copy where they are float64 and
            contiguous, or CSR without unsorted or repeated columns, so not to be changed afterwards.
        algorithm: one of `ALGORITHMS`.
        objective: whose regulariser the updates apply.
        step: gamma, > 0.
        kernels: "numba", "numpy", or "auto" for numba where it is installed.

    Raises:
        ValueError: features that are empty, not two-dimensional or not finite, an unknown algorithm or kernels, or a
            step that is not above 0 and finite.
        ImportError: kernels "numba" without numba.
    """
    if isinstance(features, np.ndarray):
        return DenseBlock(features, algorithm, objective, step, kernels)
    from problems.vertical.sparse_blocks import SparseBlock

    return SparseBlock(features, algorithm, objective, step, kernels)


def _checked_step(step: float) -> float:
    if not 0.0 < step < math.inf:
        raise ValueError(f"step must be > 0 and finite, got {step}")
    return float(step)


def _nature(values: Array) -> str:
    """What is wrong with an array, in words."""
    if values.ndim != 1:
        return f"shape {values.shape}"
    bad = int((~np.isfinite(values)).sum())
    return f"{len(values):,}, {bad:,} of them not finite (lower learning-rate)" if bad else f"{len(values):,}"
