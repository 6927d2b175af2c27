"""A block of sparse columns: an update's cost grows with its rows' entries, not with the number of columns."""

from __future__ import annotations

import numpy as np

from problems.vertical.blocks import sparse_kernels as kernels
from problems.vertical.blocks.base import SAGA, SGD, Block, Rows, SparseRows, canonical, product
from problems.vertical.objectives import Array, Objective

_NO_MEAN = np.zeros(0)


class SparseBlock(Block):
    """A block of (n, d) CSR features, whose drift is postponed per column as `sparse_kernels` describes.

    `partials` of all rows, `predict`, `penalty`, `weights`, `remember` and every setter bring all d columns up to
    date first.
    """

    def __init__(self, features: SparseRows, algorithm: str, objective: Objective, step: float) -> None:
        if features.ndim != 2:
            raise ValueError(f"features must be (n, d), got {features.shape}")
        matrix = canonical(features)
        super().__init__(matrix, algorithm, objective, step)
        self._matrix: kernels.Matrix = (matrix.indptr, matrix.indices, matrix.data)
        self._done = 0  # updates so far
        self._settled = np.zeros(self.columns, dtype=np.int64)
        self._late = False
        self._compile()

    def partials(self, rows: Rows | None = None) -> Array:
        if rows is None:
            self._settle()
            return product(self._features, self._w)
        rows, out = _own(rows), np.empty(len(rows))
        indptr, indices, data = self._matrix
        if not kernels.partials(indptr, indices, data, rows, out, *self._lazy()):
            raise self._outside(rows)
        return out

    def apply(self, rows: Rows, theta: Array) -> None:
        theta = self._slopes(theta, len(rows))
        rows, change, share = _own(rows), theta.copy(), 0.0
        if self.algorithm != SGD:
            if self._theta is None:
                raise self._needs_theta()
            change = theta - self._theta.take(rows, mode="clip")
            share = 1.0 / self.rows if self.algorithm == SAGA else 0.0
        self._done += 1
        indptr, indices, data = self._matrix
        if not kernels.apply(indptr, indices, data, rows, change, share, *self._lazy()):
            self._done -= 1
            raise self._outside(rows)
        self._late = True
        if share and self._theta is not None:
            self._theta[rows] = theta

    def _compile(self) -> None:
        """Call all kernels once, without effect, so that no update waits for a compiler."""
        rows, nothing = np.zeros(1, dtype=np.int64), np.zeros(1)
        self.partials(rows)
        indptr, indices, data = self._matrix
        kernels.apply(indptr, indices, data, rows, nothing, 0.0, *self._lazy())
        kernels.settle(*self._lazy())

    def _lazy(self) -> kernels.Lazy:
        mean = _NO_MEAN if self._mean is None else self._mean
        objective = self.objective
        return kernels.Lazy(
            self._w, self._settled, mean, self._done, self.step, float(objective.weight), objective.linear_decay
        )

    def _settle(self) -> None:
        if self._late:
            kernels.settle(*self._lazy())
            self._late = False


def _own(rows: Rows) -> Rows:
    """A copy, of the type that kernels are compiled for; read-only or strided arrays are of other types."""
    return np.array(rows, dtype=np.int64)
