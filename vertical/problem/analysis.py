"""The value, curvature and minimum of a problem, and the largest step with which delayed updates are stable.

A run checks its learning rate by the curvature and the largest step. The minimum, which is computed from all columns
in one process, is a reference for the result of a run.
"""

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float64

from problems.randomness import stream
from vertical.problem.blocks.base import Features, product, transposed_product
from vertical.problem.objectives import Objective

_MAX_STEPS, _MAX_PRODUCTS, _MAX_POWERS = 200, 2000, 1000


def value(
    features: Features, labels: Float64[np.ndarray, "n"], objective: Objective, weights: Float64[np.ndarray, "d"]
) -> float:
    """Return f(weights) = 1/n sum_i loss(x_i w, y_i) + weight * sum_j g(w_j).

    Args:
        features: The (n, d) features, dense or sparse.
        labels: The labels, see `Objective.check_labels`.
        objective: The losses and the regulariser.
        weights: The point.
    """
    return float(objective.losses(product(features, weights), labels).mean()) + objective.penalty(weights)


def gradient(
    features: Features, labels: Float64[np.ndarray, "n"], objective: Objective, weights: Float64[np.ndarray, "d"]
) -> Float64[np.ndarray, "d"]:
    """Return the gradient of f, X' theta / n + weight g'(w).

    Args:
        features: The (n, d) features, dense or sparse.
        labels: The labels.
        objective: The losses and the regulariser.
        weights: The point.
    """
    theta = objective.slopes(product(features, weights), labels)
    slope: np.ndarray = transposed_product(features, theta) / len(labels) + objective.penalty_slope(weights)
    return slope


def second_moment(features: Features, *, tolerance: float = 1e-3) -> float:
    """Estimate the largest eigenvalue of X' X / n, 0 without columns.

    Power iteration from a random start ends when an eigenvalue is within the relative `tolerance` of the Rayleigh
    quotient, or after 1,000 products. The result is increased by `tolerance`, and is never too large by more than that.
    Occasionally it belongs to another eigenvalue, which is smaller by some percent.

    Args:
        features: X (n, d), dense or sparse.
        tolerance: The relative tolerance, >= 0.

    Raises:
        ValueError: A tolerance below 0, or a product that is not finite.
    """
    if not tolerance >= 0.0:
        raise ValueError(f"tolerance must be >= 0, got {tolerance}")
    rows, columns = features.shape
    if not columns:
        return 0.0
    vector = stream(0, "vertical power iteration").standard_normal((columns,))
    eigenvalue = 0.0
    for _ in range(_MAX_POWERS):
        vector /= _norm(vector)
        image = transposed_product(features, product(features, vector)) / rows
        eigenvalue = float(vector @ image)
        if not math.isfinite(eigenvalue):
            raise ValueError("the features are too large: a product with the matrix is not finite; scale the features")
        if _norm(image - eigenvalue * vector) <= tolerance * eigenvalue or not image.any():
            break
        vector = image
    return eigenvalue * (1.0 + tolerance)


def largest_step(eigenvalue: float, delay: int) -> float:
    """Return the largest learning rate with which updates with delayed gradients are stable.

    It is the bound of gamma for w_{t+1} = w_t - gamma H w_{t - delay}: 2 sin(pi / (2 (2 delay + 1))) / lmax(H).

    Args:
        eigenvalue: lmax(H), the largest eigenvalue of the Hessian, > 0.
        delay: The number of updates between the reading of w and the use of the gradient, >= 0. With 0, the result is
            gradient descent's bound, 2 / lmax.

    Raises:
        ValueError: An argument out of range.

    Example:
        >>> largest_step(4.0, delay=0)
        0.5
    """
    if not 0.0 < eigenvalue < math.inf:
        raise ValueError(f"the eigenvalue must be > 0 and finite, got {eigenvalue}")
    if delay < 0:
        raise ValueError(f"the delay must be 0 or more, got {delay}")
    return 2.0 * math.sin(math.pi / (2 * (2 * delay + 1))) / eigenvalue


def minimum(
    features: Features, labels: Float64[np.ndarray, "n"], objective: Objective, *, tolerance: float = 1e-10
) -> tuple[Float64[np.ndarray, "d"], float]:
    """Return the minimiser of f and its value, by Newton's method from 0.

    For the convex problems `logistic` and `ridge` the result is the global minimum. The problems `nonconvex-logistic`
    and `robust` are not convex: the result is a point of zero gradient, and another point may be lower.

    The Newton directions come from conjugate gradients, which end at directions of negative curvature (Nocedal and
    Wright, "Numerical Optimization", 2006, algorithm 7.1). Steps are halved until f decreases by Armijo's rule.

    Args:
        features: The (n, d) features, dense or sparse.
        labels: The labels, see `Objective.check_labels`.
        objective: The objective f. It must have a minimum: a logistic loss of separable rows with weight 0 has none.
        tolerance: The bound of the gradient's norm, > 0, as a multiple of max(1, its norm at 0).

    Raises:
        ValueError: Labels do not fit, or the tolerance is not above 0.
        RuntimeError: The gradient did not become small enough. The message contains its norm.
    """
    objective.check_labels(labels)
    if len(labels) != features.shape[0]:
        raise ValueError(
            f"{features.shape[0]:,} rows of features but {len(labels):,} labels: pass one label for each row"
        )
    if not tolerance > 0.0:
        raise ValueError(f"tolerance must be > 0, got {tolerance}")
    w = np.zeros(features.shape[1])
    f, slope = value(features, labels, objective, w), gradient(features, labels, objective, w)
    target = tolerance * max(1.0, _norm(slope))
    for _ in range(_MAX_STEPS):
        if _norm(slope) <= target:
            return w, f
        direction = _conjugate(features, labels, objective, w, slope)
        descent = float(slope @ direction)
        lower = _line_search(lambda point: value(features, labels, objective, point), w, f, direction, descent)
        if lower is None:
            break
        w, f = lower
        slope = gradient(features, labels, objective, w)
    raise RuntimeError(
        f"the norm of the gradient is {_norm(slope):.1e}, not within {target:.1e}, at weights of norm {_norm(w):.1e}: "
        "no minimum found"
    )


def _conjugate(
    features: Features,
    labels: Float64[np.ndarray, "n"],
    objective: Objective,
    w: Float64[np.ndarray, "d"],
    slope: Float64[np.ndarray, "d"],
) -> Float64[np.ndarray, "d"]:
    """Return approximately -H^-1 slope, for the Hessian H. The result is always a direction of descent."""
    curvatures = objective.curvatures(product(features, w), labels) / len(labels)
    penalty_curvatures = objective.penalty_curvature(w)
    step, residual = np.zeros(len(w)), slope.copy()
    direction, squared = -residual, float(slope @ slope)
    # With this tolerance, Newton's steps are cheap at first and converge superlinearly at the end.
    target_norm = min(0.1, math.sqrt(_norm(slope))) * _norm(slope)
    for _ in range(_MAX_PRODUCTS):
        image = transposed_product(features, curvatures * product(features, direction)) + penalty_curvatures * direction
        bend = float(direction @ image)
        if bend <= 0.0:
            return step if step.any() else direction
        length = squared / bend
        step += length * direction
        residual += length * image
        previous, squared = squared, float(residual @ residual)
        if math.sqrt(squared) <= target_norm:
            break
        direction = -residual + squared / previous * direction
    return step


def _line_search(
    f: Callable[[Float64[np.ndarray, "d"]], float],
    w: Float64[np.ndarray, "d"],
    at: float,
    direction: Float64[np.ndarray, "d"],
    slope: float,
) -> tuple[Float64[np.ndarray, "d"], float] | None:
    """Return a step along ``direction``: the first of w + direction, w + direction / 2, ... where f is low enough.

    Args:
        f: The function.
        w: The present point.
        at: f at w.
        direction: The direction.
        slope: The derivative of f at w along ``direction``.

    Returns:
        The point and its value of f. None if no step is short enough.
    """
    rounding = 1e-14 * abs(at)
    length = 1.0
    for _ in range(60):
        candidate = w + length * direction
        lower = f(candidate)
        if lower <= at + 1e-4 * length * slope + rounding:
            return candidate, lower
        length /= 2.0
    return None


def _norm(vector: Float64[np.ndarray, "d"]) -> float:
    return float(np.linalg.norm(vector))
