"""Means over clients: of their arrays, plain or weighted, and of the moments of their samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from problems.models.vectors import FloatArray

# (k,) float64; ones give the plain mean, bit for bit
Weights = NDArray[np.float64]


def mean(values: Sequence[FloatArray], weights: Weights | None = None) -> FloatArray:
    """The mean of equal-shaped arrays, accumulated in float64 and rounded once."""
    averaged: FloatArray = exact_mean(values, weights).astype(values[0].dtype)
    return averaged


def exact_mean(values: Sequence[FloatArray], weights: Weights | None = None) -> NDArray[np.float64]:
    """The mean of k equal-shaped arrays in float64, plain or weighted by (k,) weights of mean 1."""
    total = np.zeros(values[0].shape, dtype=np.float64)
    for place, value in enumerate(values):
        total += value if weights is None else weights[place] * value.astype(np.float64)
    return total / len(values)


def pooled_moments(
    counts: NDArray[np.float64], means: NDArray[np.float64], variances: NDArray[np.float64]
) -> tuple[Any, Any]:
    """Mean and variance of N pooled samples, from their sizes (N,), means (N, ...) and variances (N, ...).

    m = sum n_i m_i / n and v = sum n_i (v_i + (m_i - m)^2) / n; both are 0 if all samples are empty.
    """
    weights = counts.reshape(-1, *[1] * (means.ndim - 1))
    total = max(counts.sum(), 1.0)
    mean = (weights * means).sum(axis=0) / total
    return mean, (weights * (variances + (means - mean) ** 2)).sum(axis=0) / total
