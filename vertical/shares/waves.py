"""Slopes of losses as sums of sines, which shares can compute: sin k(c - r) needs only dealt sin(k r) and cos(k r).

A slope is approximated on [-`BOUND`, `BOUND`] by `TERMS` sines, with the largest error .0016 for the sigmoid and .0076
for the robust loss. Beyond, the sum falls smoothly to 0 at half of the longest sine's period, since a jump there would
need many more sines. The sigmoid is right within a tenth up to 45.
"""

from collections.abc import Callable
from functools import cache
from typing import Final

import numpy as np
from jaxtyping import Float64, UInt64
from numpy.typing import NDArray
from scipy.special import expit

from vertical.problem.objectives import LOGISTIC, ROBUST
from vertical.shares.numbers import PERIOD, PHASE

Array = NDArray[np.float64]

BOUND: Final = 24.0
TERMS: Final = 32
# the grid's points, the iterations, and the weight of errors beyond BOUND
_GRID, _STEPS, _BEYOND = 2001, 100, 0.1

# for each problem, the slope as an odd function of the score, or of the score minus the label, and the binary logarithm
# of `PERIOD` divided by the longest sine's period
_SLOPES: dict[str, tuple[Callable[[Array], Array], int]] = {
    LOGISTIC: (lambda z: expit(z) - 0.5, 0),
    ROBUST: (lambda z: z / (np.square(z) / 2.0 + 1.0), 1),
}


@cache
def fit_waves(problem: str) -> tuple[float, ...]:
    """Return the coefficients of a slope's sines, from the longest to the shortest: small errors everywhere.

    Lawson's iteration raises the weights of the points with large errors.

    Args:
        problem: "logistic" or "robust".

    Example:
        >>> round(float(approximate("logistic", np.array([2.0]))[0]), 2), round(float(expit(2.0)) - 0.5, 2)
        (0.38, 0.38)
    """
    slope, halvings = _SLOPES[problem]
    end = PERIOD / 2 ** (halvings + 1)
    grid = np.linspace(0.0, end, _GRID)
    taper = np.cos(np.pi / 2.0 * np.clip((grid - BOUND) / (end - BOUND), 0.0, 1.0)) ** 2
    sines, values = _sines(problem, grid), slope(grid) * taper
    importance, weights = np.where(grid <= BOUND, 1.0, _BEYOND), np.full(_GRID, 1.0 / _GRID)
    coefficients = np.zeros(TERMS)
    for _ in range(_STEPS):
        roots = np.sqrt(weights)
        coefficients = np.linalg.lstsq(sines * roots[:, None], values * roots, rcond=None)[0]
        weights *= np.abs(sines @ coefficients - values) * importance + 1e-15
        weights /= weights.sum()
    return tuple(coefficients.tolist())


def approximate(problem: str, scores: Float64[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
    """Return the approximated slope of each score, with which shares train.

    Args:
        problem: "logistic" (the sigmoid minus 1/2) or "robust".
        scores: The scores, for "robust" minus the labels.
    """
    values: Array = _sines(problem, scores) @ np.array(fit_waves(problem))
    return values


def _sines(problem: str, scores: Array) -> Array:
    period = PERIOD / 2 ** _SLOPES[problem][1]
    sines: Array = np.sin(np.outer(scores, 2.0 * np.pi / period * np.arange(1, TERMS + 1)))
    return sines


def turn(problem: str, phases: UInt64[np.ndarray, "n"]) -> Float64[np.ndarray, "terms n"]:
    """Return the angles of a slope's sines for scores, or masks of scores, as integers modulo 2^64.

    Args:
        problem: "logistic" or "robust".
        phases: The integers, `FEATURE + WEIGHT` bits.
    """
    period = PHASE - _SLOPES[problem][1]
    angles = (phases & np.uint64((1 << period) - 1)) * (2.0 * np.pi / 2.0**period)
    multiples: Array = np.outer(np.arange(1, TERMS + 1), angles)
    return multiples
