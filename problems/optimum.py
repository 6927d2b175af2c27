"""`minimise`, which minimises f(x) + g(x), for smooth convex f and a penalty g, to the last digits of the dtype.

Accelerated proximal gradient: FISTA (Beck & Teboulle, "A Fast Iterative Shrinkage-Thresholding Algorithm for Linear
Inverse Problems", 2009) with the gradient restart of O'Donoghue & Candes, "Adaptive Restart for Accelerated Gradient
Schemes" (2015), section 3.2. Values of f cannot distinguish points closer than sqrt(eps), so the
restart and the end are decided by gradients.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from problems.penalties.base import Penalty, norm

# The numbers of iterations without a new smallest residual after which the iteration ends. The first number applies if
# the residual is as small as rounding should allow, the second if it is below sqrt(eps), since f may round more.
_PATIENCE, _LONG_PATIENCE = 50, 1000
_TOLERANCE = 1e-14
_MOST_ITERATIONS = 20_000


@dataclass(frozen=True)
class Optimum:
    """The result of `minimise`.

    Attributes:
        point: The minimum. It is the result of a proximal map, so it is exactly sparse, or exactly in the set.
        value: f + g at the point.
        iterations: The number of proximal steps.
        residual: The smallest residual, at ``point``; see `minimise`.
        converged: Whether the residual is as small as required, or as rounding allows.
    """

    point: Float[Tensor, "d"]
    value: float
    iterations: int
    residual: float
    converged: bool


def minimise(
    smooth: Callable[[Float[Tensor, "d"]], tuple[float, Float[Tensor, "d"]]],
    penalty: Penalty,
    start: Float[Tensor, "d"],
    *,
    lipschitz: float,
    convexity: float = 0.0,
) -> Optimum:
    """Minimise f + g from ``start``.

    The residual of an iterate y is ||y - x|| / max(1, ||y||) with x = P_{s g}(y - s grad f(y)), s = 1 / lipschitz, and
    P the proximal map of g. The result is the x with the smallest residual. The iteration ends at a residual of 1e-14
    or, if the convexity is known, 1e-14 * s * convexity, so the *point* is within about 1e-14 of the minimum. It also
    ends once rounding, 8 sqrt(d) eps, prevents a smaller residual, or after 20,000 steps.

    Args:
        smooth: The map x -> (f(x), its gradient); f is convex.
        penalty: g.
        start: The first point, float32 or float64; not changed.
        lipschitz: An upper bound of the Lipschitz constant of f's gradient.
        convexity: A lower bound of f's strong convexity. Limits the momentum to Nesterov's (2004, section 2.2.1).

    Raises:
        ValueError: An argument is out of range, or a gradient is not finite, for example if ``lipschitz`` is too small.
    """
    if not 0 < lipschitz < math.inf:
        raise ValueError(f"lipschitz must be > 0 and finite, got {lipschitz}")
    if not 0 <= convexity < math.inf:
        raise ValueError(f"convexity must be >= 0 and finite, got {convexity}")
    eps = torch.finfo(start.dtype).eps
    allowance = 8 * math.sqrt(start.numel()) * eps
    target = _TOLERANCE * (min(1.0, convexity / lipschitz) if convexity > 0 else 1.0)
    root = math.sqrt(min(1.0, convexity / lipschitz))
    best, best_point, since = math.inf, start.clone(), 0
    previous, y, t = start, start, 1.0
    for iteration in range(1, _MOST_ITERATIONS + 1):
        gradient = smooth(y)[1]
        if not torch.isfinite(gradient).all():
            raise ValueError(f"the gradient is not finite at iteration {iteration}: diverged, or not defined there")
        x = penalty.prox(y - gradient / lipschitz, 1 / lipschitz)
        moved = x - y
        residual = norm(moved) / max(1.0, norm(y))
        since += 1
        if residual < best:
            best, best_point, since = residual, x, 0
        patience = _PATIENCE if best <= allowance else max(_LONG_PATIENCE, iteration // 2)
        if best <= target or (best <= math.sqrt(eps) and since >= patience):
            break

        step = x - previous
        if float(moved @ step) < 0:
            t = 1.0
        following = (1 + math.sqrt(1 + 4 * t * t)) / 2
        momentum = min((t - 1) / following, (1 - root) / (1 + root))
        y = x + momentum * step
        previous, t = x, following
    value = float(smooth(best_point)[0]) + penalty.value(best_point)
    return Optimum(best_point, value, iteration, best, best <= max(target, allowance))


def smoothness(features: Float[Tensor, "n d"], weights: Float[Tensor, "n"] | None = None) -> float:
    """Return the largest eigenvalue of A' diag(w) A by power iteration from a fixed random start.

    The eigenvalue times the largest l'' is a Lipschitz constant of the gradient of sum_i w_i l(a_i' x). l'' is at most
    1 for the squared loss (a - b)^2 / 2 and 1/4 for the logistic loss. The result is a Rayleigh quotient, so it exceeds
    the eigenvalue by rounding only. The iteration ends when an eigenvalue is within a relative distance of 1e-6 of the
    result, or after 1000 products, when the result is within about 1 % of the eigenvalue for any spectrum (Kuczynski &
    Wozniakowski 1992, theorem 3.1).

    Args:
        features: A.
        weights: w, not negative. None: all weights are 1.

    Raises:
        ValueError: The shapes do not fit, or a weight is negative.
    """
    if features.ndim != 2:
        raise ValueError(f"features must be (n, d), got {tuple(features.shape)}")
    if weights is not None and weights.shape != features.shape[:1]:
        raise ValueError(f"weights must have shape ({len(features)},), got {tuple(weights.shape)}")
    if weights is not None and bool((weights < 0).any()):
        raise ValueError(f"weights must not be negative, got a minimum of {float(weights.min()):g}")
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(features.shape[1], generator=generator, dtype=torch.float64).to(features)
    value = 0.0
    for _ in range(1000):
        vector = vector / torch.linalg.vector_norm(vector)
        image = features @ vector
        product = features.T @ (image if weights is None else weights * image)
        value = float(vector @ product)
        if norm(product - value * vector) <= 1e-6 * value:
            break
        vector = product
    return value
