"""Values and curvature of a problem, and the largest stable step under delay."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from problems.randomness import stream
from problems.vertical.blocks.base import Features, product, transposed_product
from problems.vertical.objectives import Array, Objective


def value(features: Features, labels: Array, objective: Objective, weights: Array) -> float:
    """f(weights) = 1/n sum_i loss(x_i w, y_i) + weight * sum_j g(w_j)."""
    return float(objective.losses(product(features, weights), labels).mean()) + objective.penalty(weights)


def gradient(features: Features, labels: Array, objective: Objective, weights: Array) -> Array:
    """(d,) X' theta / n + weight g'(w)."""
    theta = objective.slopes(product(features, weights), labels)
    return transposed_product(features, theta) / len(labels) + objective.penalty_slope(weights)


def largest_eigenvalue(
    matvec: Callable[[Array], Array],
    size: int,
    *,
    iterations: int = 1000,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> float:
    """The largest eigenvalue of a positive semidefinite matrix, by power iteration from a random start.

    As a Rayleigh quotient the result exceeds the eigenvalue by rounding only. The iteration ends once some eigenvalue
    is within `tolerance` of it, relatively, or after `iterations` products.

    Args:
        matvec: (size,) -> (size,), the product with the matrix.
        size: >= 1.

    Raises:
        ValueError: an argument out of range, or a product that is not finite.
    """
    if size < 1 or iterations < 1 or not tolerance >= 0.0:
        raise ValueError(
            f"size and iterations must be 1 or more, tolerance >= 0, got {size}, {iterations}, {tolerance}"
        )
    vector = stream(seed, "vertical power iteration").standard_normal(size)
    found = 0.0
    for _ in range(iterations):
        vector /= np.linalg.norm(vector)
        image = matvec(vector)
        found = float(vector @ image)
        if not math.isfinite(found):
            raise ValueError(f"the product with the matrix is not finite, {found}")
        residual = float(np.linalg.norm(image - found * vector))
        if residual <= tolerance * found or not image.any():
            break
        vector = image
    return found


def second_moment(features: Features, *, tolerance: float = 1e-3) -> float:
    """lmax(X' X / n) of (n, d) features, too large by a relative `tolerance` at most; 0 without columns."""
    rows, columns = features.shape
    if not columns:
        return 0.0

    def moved(vector: Array) -> Array:
        image: Array = transposed_product(features, product(features, vector)) / rows
        return image

    return largest_eigenvalue(moved, columns, tolerance=tolerance) * (1.0 + tolerance)


def largest_step(eigenvalue: float, delay: int) -> float:
    """The gamma below which w_{t+1} = w_t - gamma H w_{t - delay} is stable: 2 sin(pi / (2 (2 delay + 1))) / lmax(H).

    Args:
        eigenvalue: lmax(H), > 0.
        delay: tau, updates between the reading of w and its use, >= 0; 0 gives the 2 / lmax of gradient descent.

    Raises:
        ValueError: an argument out of range.
    """
    if not 0.0 < eigenvalue < math.inf:
        raise ValueError(f"the eigenvalue must be > 0 and finite, got {eigenvalue}")
    if delay < 0:
        raise ValueError(f"the delay must be 0 or more, got {delay}")
    return 2.0 * math.sin(math.pi / (2 * (2 * delay + 1))) / eigenvalue
