"""Means over clients: of their arrays, plain or weighted, and of the moments of their samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from problems.models.vectors import FloatArray

# (k,) in float64; ones make the plain mean, to the bit
Weights = NDArray[np.float64]


def mean(values: Sequence[FloatArray], weights: Weights | None = None) -> FloatArray:
    """The mean of equal-shaped arrays, accumulated in float64 and rounded once."""
    averaged: FloatArray = exact_mean(values, weights).astype(values[0].dtype)
    return averaged


def exact_mean(values: Sequence[FloatArray], weights: Weights | None = None) -> NDArray[np.float64]:
    """The mean of k equal-shaped arrays in float64, plain or times (k,) weights whose mean is 1."""
    total = np.zeros(values[0].shape, dtype=np.float64)
    for place, value in enumerate(values):
        total += value if weights is None else weights[place] * value.astype(np.float64)
    return total / len(values)


def pooled_moments(
    counts: NDArray[np.float64], means: NDArray[np.float64], variances: NDArray[np.float64]
) -> tuple[Any, Any]:
    """Mean and variance of the union of N samples, from each one's number, mean (N, ...) and variance (N, ...).

    m = sum n_i m_i / n and v = sum n_i (v_i + (m_i - m)^2) / n; 0 of both where there is nothing.
    """
    weights = counts.reshape(-1, *[1] * (means.ndim - 1))
    total = max(counts.sum(), 1.0)
    mean = (weights * means).sum(axis=0) / total
    return mean, (weights * (variances + (means - mean) ** 2)).sum(axis=0) / total
