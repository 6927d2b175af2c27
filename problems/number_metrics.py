"""Metrics of predictions of numbers, computed from sums over rows that can be added over sites."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from problems.metrics import Interval
from problems.objectives.number_losses import SQUARED, deviances, means

METRICS = ("rmse", "mae", "r2", "deviance", "loss")
_EQUAL = Fraction(1, 10**14)
"""The largest variance, relative to the mean square, of labels that count as equal: y^2 is rounded."""


@dataclass(frozen=True)
class ErrorSums:
    """Sums over rows with a label y, a score s and the mean that s predicts.

    Attributes:
        rows: The number of rows.
        labels, squares: The sums of y and of y^2.
        squared_errors, errors: The sums of (y - mean)^2 and of |y - mean|.
        deviances: The sum of the deviances.
        losses: The sum of the losses, without terms that do not depend on s.
    """

    rows: Fraction
    labels: Fraction
    squares: Fraction
    squared_errors: Fraction
    errors: Fraction
    deviances: Fraction
    losses: Fraction

    @classmethod
    def of(cls, numbers: Sequence[Fraction]) -> Self:
        """Return the sums in a list, ordered like the attributes."""
        return cls(*numbers)

    def metrics(self) -> dict[str, float]:
        """Return the `METRICS`: root mean squared error, mean absolute error, R^2, mean deviance, and mean loss.

        If all labels are equal, R^2 is 1 for exact predictions, else 0.

        Raises:
            ValueError: The sums are over 0 rows.
        """
        if not self.rows:
            raise ValueError("metrics of numbers need at least one row")
        spread = self.squares - self.labels**2 / self.rows
        varies = spread > _EQUAL * self.squares
        r2 = 1 - self.squared_errors / spread if varies else Fraction(not self.squared_errors)
        return {
            "rmse": math.sqrt(self.squared_errors / self.rows),
            "mae": float(self.errors / self.rows),
            "r2": float(r2),
            "deviance": float(self.deviances / self.rows),
            "loss": float(self.losses / self.rows),
        }


def sum_errors(loss: str, labels: NDArray[np.floating], scores: NDArray[np.floating]) -> list[float]:
    """Return the sums of `ErrorSums` over rows. A sum is not finite if a prediction is not finite.

    Args:
        loss: A loss of `NUMBER_LOSSES`.
        labels: The labels (n,).
        scores: The scores (n,), with offsets.
    """
    return [math.fsum(part) if np.isfinite(part).all() else math.nan for part in _terms(loss, labels, scores)]


def _terms(loss: str, labels: NDArray[np.floating], scores: NDArray[np.floating]) -> Float64[np.ndarray, "7 n"]:
    """Return each row's terms of the sums of `ErrorSums`."""
    y, s = np.asarray(labels, np.float64), np.asarray(scores, np.float64)
    mean = means(loss, s)
    with np.errstate(over="ignore", invalid="ignore"):
        error = y - mean
        losses = np.square(error) / 2 if loss == SQUARED else mean - y * s
        parts = (np.ones_like(y), y, np.square(y), np.square(error), np.abs(error), deviances(loss, s, y), losses)
    return np.stack(parts)


def number_intervals(
    loss: str,
    labels: NDArray[np.floating],
    scores: NDArray[np.floating],
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Return the `METRICS` of rows with bootstrap intervals: percentiles over resamples of n rows with replacement.

    Args:
        loss: A loss of `NUMBER_LOSSES`.
        labels: The labels (n,).
        scores: The scores (n,), with offsets.
        resamples: The number of resamples, at least 1.
        confidence: The share of the resamples inside the interval, in (0, 1).
        seed: The seed of the resamples.

    Raises:
        ValueError: The rows are empty, or a prediction is not finite.
    """
    values, terms = number_metrics(loss, labels, scores), _terms(loss, labels, scores)
    rng, draws = np.random.default_rng(seed), list[list[float]]()
    for _ in range(resamples):
        sums = terms[:, rng.integers(len(labels), size=len(labels))].sum(axis=1)
        draws.append(list(ErrorSums.of(list(map(Fraction, sums))).metrics().values()))
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, (tail, 1 - tail), axis=0).tolist()
    return {name: Interval(value, *bounds) for (name, value), *bounds in zip(values.items(), low, high, strict=True)}


def number_metrics(loss: str, labels: NDArray[np.floating], scores: NDArray[np.floating]) -> dict[str, float]:
    """Return the `METRICS` of rows.

    Args:
        loss: A loss of `NUMBER_LOSSES`.
        labels: The labels (n,).
        scores: The scores (n,), with offsets.

    Raises:
        ValueError: The rows are empty, or a prediction is not finite.

    Example:
        >>> number_metrics("squared", np.array([1.0, 3.0]), np.array([2.0, 3.0]))["mae"]
        0.5
    """
    sums = sum_errors(loss, labels, scores)
    if not all(map(math.isfinite, sums)):
        raise ValueError("predictions are not finite")
    return ErrorSums.of(list(map(Fraction, sums))).metrics()
