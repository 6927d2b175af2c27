"""A party's block: its columns X (n, d) of the training rows, their weights w (d,), and the updates of the weights.

The updates are VFB2's (Zhang, Gu, Deng, Huang, "Secure Bilevel Asynchronous Vertical Federated Learning with Backward
Updating", AAAI 2021, Algorithms 2 to 7), with batches of rows B instead of single rows. In each update, a party with
labels (the *dominator*) gets the sum z (b,) of all parties' partial sums X_B w. It computes theta (b,), the derivatives
(*slopes*) of the losses in z, and sends theta to all other parties. Every party then updates its own block by
w <- w - step direction:

| algorithm | boxes | direction, plus weight g'(w) | remembered before the first update |
|---|---|---|---|
| VFB2-SGD | 2 and 3 | X_B' theta / b | nothing |
| VFB2-SVRG | 4 and 5 | X_B' (theta - theta0_B) / b + X' theta0 / n | theta0 (n,), the slopes at the epoch's start |
| VFB2-SAGA | 6 and 7 | X_B' (theta - alpha_B) / b + X' alpha / n | alpha (n,), the newest slope of every row |

The paper stores gradients that include the regulariser. This module stores one slope per row, and takes the regulariser
at the current weights (docs/vertical-theory.md compares the two). Unlike in the paper, a block can have a nonsmooth
penalty R. The update is then w <- prox_{step R}(w - step direction): proximal SGD (Duchi, Singer 2009), SVRG (Xiao,
Zhang 2014) and SAGA (Defazio, Bach, Lacoste-Julien 2014).
"""

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray
from scipy import sparse

from vertical.problem.objectives import Array, Objective

if TYPE_CHECKING:
    from problems.penalties.base import Penalty

SGD, SVRG, SAGA = "sgd", "svrg", "saga"
ALGORITHMS = (SGD, SVRG, SAGA)

Rows = NDArray[np.int64]
SparseRows: TypeAlias = "sparse.csr_array[np.float64]"
Features: TypeAlias = "Array | SparseRows"


class Block(ABC):
    """A party's columns of the training rows, and its weights.

    The initial weights are zero; a network's initial weights are random. Not safe for threads: only one update or sum
    may run at a time.

    Attributes:
        rows: The number n of rows.
        columns: The number d of columns.
        width: The number k of values per row in partials and thetas; 1 except in `vertical.problem.blocks.network`.
        algorithm: An element of `ALGORITHMS`.
        objective: The objective whose regulariser the updates apply.
        step: The learning rate gamma.
        nonsmooth: A penalty of the weights, whose proximal step follows each update. None: no penalty.
    """

    width = 1
    nonsmooth: "Penalty | None" = None

    def __init__(self, features: Features, algorithm: str, objective: Objective, step: float) -> None:
        self.rows, self.columns = features.shape
        if not (self.rows and self.columns):
            raise ValueError(f"a block needs rows and columns, got {self.rows:,} x {self.columns:,}")
        if algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm {algorithm!r} is not known; one of: {', '.join(ALGORITHMS)}")
        self.algorithm, self.objective = algorithm, objective
        self.step = _checked_step(step)
        values = features if isinstance(features, np.ndarray) else features.data
        if not np.isfinite(values).all():
            raise ValueError(f"features must be finite, {int((~np.isfinite(values)).sum()):,} are not")
        self._features = features
        self._w = np.zeros(self.columns)
        self._theta: Array | None = None  # (n,) the stored slopes: theta0 of SVRG, alpha of SAGA
        self._mean: Array | None = None  # (d,) X' times the stored slopes / n

    @property
    def weights(self) -> Float64[np.ndarray, "d"]:
        """A copy of the weights, after all postponed updates."""
        self._settle()
        return self._w.copy()

    @property
    def table(self) -> Float64[np.ndarray, "n"] | None:
        """A copy of SAGA's alpha; None before `remember`, and for other algorithms."""
        return self._theta.copy() if self.algorithm == SAGA and self._theta is not None else None

    def set_weights(self, weights: Float64[np.ndarray, "d"]) -> None:
        """Replace the weights. The stored slopes do not change.

        Raises:
            ValueError: The shape is wrong, or a weight is not finite.
        """
        weights = np.asarray(weights, dtype=np.float64)
        if weights.shape != self._w.shape or not np.isfinite(weights).all():
            raise ValueError(f"weights must be {len(self._w):,} finite numbers, got {_describe(weights)}")
        self._settle()
        self._w[:] = weights

    def set_step(self, step: float) -> None:
        """Change the learning rate, from the next update on.

        Raises:
            ValueError: The step is not above 0 and finite.
        """
        step = _checked_step(step)
        self._settle()
        self.step = step

    def remember(self, theta: Float64[np.ndarray, "n"]) -> None:
        """Store the slopes of all rows at the current weights, as SVRG's snapshot or SAGA's table.

        Raises:
            ValueError: The algorithm is SGD, or theta has another length or is not finite.
        """
        if self.algorithm == SGD:
            raise ValueError("sgd stores no slopes: call remember only with svrg or saga")
        theta = self._slopes(theta, self.rows).copy()
        self._settle()
        self._theta, self._mean = theta, transposed_product(self._features, theta) / self.rows

    def penalty(self) -> float:
        """Return the regulariser weight * sum_j g(w_j) plus the nonsmooth penalty."""
        self._settle()
        own = self.objective.penalty(self._w)
        if self.nonsmooth is None:
            return own
        import torch  # imported inside the method, since most parties do not need it

        return own + self.nonsmooth.value(torch.from_numpy(self._w))

    def _shrink(self) -> None:
        """Take the proximal step of the nonsmooth penalty, which needs all columns."""
        if self.nonsmooth is not None:
            import torch

            self._settle()
            weights = torch.from_numpy(self._w)
            self.nonsmooth.prox(weights, self.step, out=weights)

    @abstractmethod
    def partials(self, rows: Int64[np.ndarray, "b"] | None = None) -> Float64[np.ndarray, "b"]:
        """Return the partial sums of rows, X[rows] w.

        Args:
            rows: The (b,) rows. None: all rows.

        Raises:
            ValueError: A row is outside 0 .. n - 1.
        """

    @abstractmethod
    def apply(self, rows: Int64[np.ndarray, "b"], theta: Float64[np.ndarray, "b"]) -> None:
        """Update the weights by the slopes of a batch.

        Args:
            rows: The (b,) rows of the batch, all different.
            theta: The (b,) slopes of these rows.

        Raises:
            ValueError: theta is empty, not finite or longer or shorter than rows, a row is outside 0 .. n - 1, or the
                algorithm is SVRG or SAGA and `remember` was not called.
        """

    def predict(self, features: Features) -> Float64[np.ndarray, "n"]:
        """Return the partial sums of other rows, features @ weights.

        Args:
            features: The (n, d) features of the rows, with the same columns.

        Raises:
            ValueError: The number of columns is wrong.
        """
        self._settle()
        return product(self._accept(features), self._w)

    def _accept(self, features: Features) -> Features:
        if features.ndim != 2 or features.shape[1] != self.columns:
            raise ValueError(f"features must be (k, {self.columns}), got {features.shape}")
        return features

    @abstractmethod
    def _settle(self) -> None:
        """Apply the postponed updates."""

    def _slopes(self, theta: Float64[np.ndarray, "{length}"], length: int) -> Float64[np.ndarray, "{length}"]:
        theta = np.asarray(theta, dtype=np.float64)
        if theta.shape != (length,) or not length or not np.isfinite(theta).all():
            raise ValueError(f"theta must be {length or '1 or more'} finite numbers, got {_describe(theta)}")
        return theta

    def _needs_theta(self) -> ValueError:
        slopes = "a snapshot" if self.algorithm == SVRG else "a table"
        return ValueError(f"{self.algorithm} needs {slopes} before its first update: call remember")

    def _outside(self, rows: Int64[np.ndarray, "b"]) -> ValueError:
        return ValueError(f"rows must be 0 to {self.rows - 1:,}, got {rows.min()} to {rows.max()}")


def product(features: Features, weights: Float64[np.ndarray, "d"]) -> Float64[np.ndarray, "n"]:
    """Return features @ weights.

    Args:
        features: (n, d), dense or sparse.
        weights: The weights of the columns.
    """
    return cast(Array, features @ weights)


def transposed_product(features: Features, values: Float64[np.ndarray, "n"]) -> Float64[np.ndarray, "d"]:
    """Return features.T @ values.

    Args:
        features: (n, d), dense or sparse.
        values: The values of the rows.
    """
    return cast(Array, features.T @ values)


def canonical(features: SparseRows) -> SparseRows:
    """Return (n, d) features as float64 CSR with sorted and unique columns, without a copy if possible."""
    matrix: SparseRows = sparse.csr_array(features).astype(np.float64, copy=False)
    matrix.check_format(full_check=True)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    return matrix


def _checked_step(step: float) -> float:
    if not 0.0 < step < math.inf:
        raise ValueError(f"step must be > 0 and finite, got {step}")
    return float(step)


def _describe(values: Array) -> str:
    """Return a description of an invalid array, for an error."""
    if values.ndim != 1:
        return f"shape {values.shape}"
    bad = int((~np.isfinite(values)).sum())
    return f"{len(values):,}, {bad:,} of them not finite (lower learning-rate)" if bad else f"{len(values):,}"
