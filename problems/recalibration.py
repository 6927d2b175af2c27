"""Recalibration of a model at one site: the logistic regression of the rows' labels on the model's own log odds.

D. R. Cox, "Two further applications of a model for binary regression", Biometrika 45, 1958: a model that fits a site's
rows has intercept 0 and slope 1. A slope below 1 means that the model's probabilities are too extreme. The ratio of
observed to expected events has the interval of T. P. A. Debray and others, "A guide to systematic review and
meta-analysis of prediction model performance", BMJ 356, 2017, without the error of the expected number.
"""

from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from scipy.special import expit, logit

from problems.tallies import Tally, sigmoid

# The fewest rows of each class. With fewer rows the intervals of a fit with two coefficients are not reliable.
MIN_ROWS = 10
INTERCEPT, SLOPE, RATIO = "intercept", "slope", "observed_expected"
_Z = 1.959964
_MAX_STEPS = 100
# probabilities of an isotonic calibration may be 0 or 1
_NEAREST = 1e-9


def recalibrate(tally: Tally, least: int = 1, *, probable: bool = True) -> dict[str, list[float]] | None:
    """Return the recalibration of all rows of a tally, each number with its 95 % interval.

    Args:
        tally: The rows.
        least: The least cell: with fewer rows of a class nothing is returned.
        probable: Whether the model's scores are log odds, so the events can be compared with the expected events.

    Returns:
        ``intercept`` and ``slope`` of the rows' log odds on the model's log odds, and with ``probable``
        ``observed_expected``, the number of events divided by the sum of the probabilities; each as [value, low, high].
        None if a class has fewer than `MIN_ROWS` rows, all rows have the same score, or the scores separate the
        classes.
    """
    if min(tally.count()) < max(MIN_ROWS, least):
        return None
    total = tally.total()
    used = (total.negatives + total.positives)[0] > 0
    negatives, positives = total.negatives[0, used], total.positives[0, used]
    probabilities = total.probabilities[used]
    odds = total.scores[used] if tally.probability_of is sigmoid else logit(probabilities.clip(_NEAREST, 1 - _NEAREST))
    fit = fit_logistic(odds, negatives, positives)
    if fit is None:
        return None
    (intercept, slope), covariance = fit
    reach = _Z * np.sqrt(np.diag(covariance))
    entry = {
        name: [float(value), float(value - half), float(value + half)]
        for name, value, half in zip((INTERCEPT, SLOPE), (intercept, slope), reach, strict=True)
    }
    return entry | ({RATIO: _ratio(probabilities, negatives, positives)} if probable else {})


def fit_logistic(
    values: Float64[np.ndarray, "bins"], negatives: Int64[np.ndarray, "bins"], positives: Int64[np.ndarray, "bins"]
) -> tuple[Float64[np.ndarray, "2"], Float64[np.ndarray, "2 2"]] | None:
    """Fit log odds = intercept + slope * value by maximum likelihood.

    Args:
        values: The value of each bin's rows.
        negatives: The numbers of negative rows.
        positives: The numbers of positive rows.

    Returns:
        Intercept and slope, and their covariance: the inverse of the information. None if the estimate does not exist,
        since all values are the same or a value separates the classes.
    """
    below, above = values[negatives > 0], values[positives > 0]
    if min(len(below), len(above)) == 0 or np.ptp(values) == 0:
        return None
    if below.max() <= above.min() or above.max() <= below.min():
        return None
    rows = negatives + positives
    centre = float(np.average(values, weights=rows))
    spread = float(np.sqrt(np.average((values - centre) ** 2, weights=rows)))
    design = np.stack((np.ones_like(values), (values - centre) / spread), axis=1)
    beta = np.array([np.log(positives.sum() / negatives.sum()), 0.0])

    def likelihood(point: Float64[np.ndarray, "2"]) -> float:
        line = design @ point
        return float(positives @ line - rows @ np.logaddexp(0, line))

    for _ in range(_MAX_STEPS):
        shares = expit(design @ beta)
        information = (design * (rows * shares * (1 - shares))[:, None]).T @ design
        step = np.linalg.solve(information, design.T @ (positives - rows * shares))
        before, size = likelihood(beta), 1.0
        while likelihood(beta + size * step) < before - 1e-9 * abs(before) and size > 1e-6:
            size /= 2
        beta = beta + size * step
        if np.abs(step).max() < 1e-10:
            break
    back = np.array([[1.0, -centre / spread], [0.0, 1 / spread]])
    return back @ beta, back @ np.linalg.inv(information) @ back.T


def _ratio(
    probabilities: Float64[np.ndarray, "bins"],
    negatives: Int64[np.ndarray, "bins"],
    positives: Int64[np.ndarray, "bins"],
) -> list[float]:
    rows, observed = int((negatives + positives).sum()), int(positives.sum())
    ratio = observed / float((negatives + positives) @ probabilities)
    factor = float(np.exp(_Z * np.sqrt((1 - observed / rows) / observed)))
    return [ratio, ratio / factor, ratio * factor]


def format_figure(figure: list[float] | None, decimals: int = 3) -> str:
    """Return the text of a number with its interval; "-" without a number."""
    if figure is None:
        return "-"
    value, low, high = (f"{each:.{decimals}f}" for each in figure)
    return f"{value} ({low} to {high})"


def describe_recalibration(entry: dict[str, Any]) -> str:
    """Return a recalibration in words.

    Args:
        entry: The result of `recalibrate`.
    """
    text = f"slope {format_figure(entry[SLOPE])}, intercept {format_figure(entry[INTERCEPT])}"
    return text + (f", observed/expected {format_figure(entry[RATIO])}" if RATIO in entry else "")
