"""FGDRO-KL and FGDRO-CVaR in plain NumPy, from methods/fgdro.py's problem."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize

Array = NDArray[np.float64]
# (w, features, labels) -> the mean loss and its gradient
Loss = Callable[[Array, Array, Array], tuple[float, Array]]


def weigh(kind: str, level: float, dual: float, temperature: float, share: float) -> float:
    if kind == "kl":
        return float(np.exp((level - dual) / temperature))
    return min(max((level - dual) / temperature, 0.0), 1 / share)


def solve_dual(kind: str, levels: Array, shares: Array, temperature: float, share: float) -> float:
    """s, by bisection of sum_i q_i p_i = 1."""

    def excess(dual: float) -> float:
        return sum(q * weigh(kind, u, dual, temperature, share) for q, u in zip(shares, levels, strict=True)) - 1

    return float(brentq(excess, levels.min() - 100 * temperature, levels.max() + 1e-9, xtol=1e-15, rtol=1e-15))


def best_weights(kind: str, levels: Array, shares: Array, temperature: float, share: float) -> Array:
    """The p that maximises sum_i q_i (p_i u_i - penalty(p_i)), by a general optimiser."""

    def negative(p: Array) -> float:
        safe = np.maximum(p, 1e-300)
        penalty = temperature * (safe * np.log(safe) if kind == "kl" else p**2 / 2)
        return -float(shares @ (p * levels - penalty))

    bound = 1 / shares.min() if kind == "kl" else 1 / share
    constraint = {"type": "eq", "fun": lambda p: shares @ p - 1}
    first = np.ones(len(levels))
    options = {"maxiter": 1000, "ftol": 1e-15}
    found = minimize(negative, first, bounds=[(0, bound)] * len(levels), constraints=[constraint], options=options)
    return np.asarray(found.x)


def local_steps(
    w: Array,
    level: float | None,
    weight: float,
    batches: Sequence[tuple[Array, Array]],
    rates: Sequence[float],
    loss: Loss,
    averaging: float,
) -> tuple[Array, float]:
    """A client's round: w and u_i at its end."""
    for (features, labels), rate in zip(batches, rates, strict=True):
        value, gradient = loss(w, features, labels)
        level = value if level is None else (1 - averaging) * level + averaging * value
        w = w - rate * weight * gradient
    assert level is not None
    return w, level
