"""Blocks whose columns are an array in memory."""

from __future__ import annotations

import numpy as np

from problems.vertical.blocks.base import SAGA, SGD, Block, Features, Rows, product, transposed_product
from problems.vertical.blocks.load import load_dense_kernels
from problems.vertical.blocks.updates import update_block
from problems.vertical.objectives import Array, Objective

_NOTHING, _NO_ROWS = np.zeros(0), np.zeros(0, dtype=np.int64)


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
