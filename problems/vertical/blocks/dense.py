"""Blocks whose columns are an array in memory."""

from __future__ import annotations

import numpy as np

from problems.vertical.blocks import dense_kernels as kernels
from problems.vertical.blocks.base import SAGA, SGD, Block, Rows
from problems.vertical.objectives import Array, Objective

_NOTHING, _NO_ROWS = np.zeros(0), np.zeros(0, dtype=np.int64)


class DenseBlock(Block):
    """A block of (n, d) float64 features in memory."""

    def __init__(self, features: Array, algorithm: str, objective: Objective, step: float) -> None:
        features = np.ascontiguousarray(features, dtype=np.float64)
        if features.ndim != 2:
            raise ValueError(f"features must be (n, d), got {features.shape}")
        super().__init__(features, algorithm, objective, step)
        self._x = features
        self._weight, self._linear = float(objective.weight), objective.linear_decay
        # Called once, without effect, so that no update pays for what a first call does.
        self.partials(_NO_ROWS)
        self._update(_NO_ROWS, _NOTHING, _NOTHING, _NOTHING)

    def partials(self, rows: Rows | None = None) -> Array:
        if rows is None:
            products: Array = self._x.dot(self._w)
            return products
        sums = np.empty(len(rows))
        if not kernels.partials(self._x, rows, self._w, sums):
            raise self._outside(rows)
        return sums

    def apply(self, rows: Rows, theta: Array) -> None:
        table, mean = (_NOTHING, _NOTHING) if self.algorithm == SGD else (self._theta, self._mean)
        if table is None or mean is None:
            raise self._needs_theta()
        theta = np.asarray(theta, dtype=np.float64)
        if not self._update(rows, theta, table, mean):
            self._slopes(theta, len(rows))
            raise self._outside(rows)

    def _update(self, rows: Rows, theta: Array, table: Array, mean: Array) -> bool:
        keep = self.algorithm == SAGA
        return kernels.apply(self._x, rows, theta, self._w, table, mean, self.step, self._weight, self._linear, keep)

    def _settle(self) -> None:
        """Nothing is postponed."""
