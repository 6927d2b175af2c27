"""Calibration of scores: monotone maps from scores to probabilities, fitted to rows counted by class and score.

`Platt` is J. Platt, "Probabilistic outputs for support vector machines" (1999), with his targets for few rows.
`Isotonic` is B. Zadrozny and C. Elkan, "Transforming classifier scores into accurate multiclass probability estimates"
(KDD 2002), linear between the means of the steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from jaxtyping import Float64
from numpy.typing import ArrayLike

from problems.tallies import Tally, sigmoid

PLATT, ISOTONIC = "platt", "isotonic"


@dataclass(frozen=True)
class Platt:
    """The probability sigmoid(slope * score + intercept). The default is the sigmoid of the score itself.

    Attributes:
        slope: The slope, at least 0.
        intercept: The intercept.
    """

    slope: float = 1.0
    intercept: float = 0.0

    @classmethod
    def fit(cls, tally: Tally) -> Self:
        """Return the maximum-likelihood fit.

        A model that ranks worse than chance gets slope 0: the same probability for all rows.

        Args:
            tally: Rows of both classes.
        """
        from sklearn.linear_model import LogisticRegression  # slow to import

        total, (negatives, positives) = tally.total(), tally.count()
        counts = np.stack((total.negatives[0], total.positives[0])).astype(np.float64)
        used = counts.any(axis=0)
        scores, counts = total.scores[used], counts[:, used]
        # Platt's targets: a positive counts partly as a negative, and vice versa
        high, low = (positives + 1) / (positives + 2), 1 / (negatives + 2)
        ones, zeros = low * counts[0] + high * counts[1], (1 - low) * counts[0] + (1 - high) * counts[1]
        centre = float(np.average(scores, weights=counts.sum(axis=0)))
        spread = float(np.sqrt(np.average((scores - centre) ** 2, weights=counts.sum(axis=0)))) or 1.0
        features = np.concatenate((scores, scores))[:, None]
        labels = np.repeat([0, 1], len(scores))
        model = LogisticRegression(C=np.inf, tol=1e-8, max_iter=1000)
        model.fit((features - centre) / spread, labels, sample_weight=np.concatenate((zeros, ones)))
        slope = float(model.coef_[0, 0]) / spread
        if slope <= 0:
            return cls(0.0, float(np.log(ones.sum() / zeros.sum())))
        return cls(slope, float(model.intercept_[0]) - slope * centre)

    def __call__(self, scores: ArrayLike) -> Float64[np.ndarray, "*shape"]:
        """Return the probabilities of (n,) scores."""
        return sigmoid(self.slope * np.asarray(scores, np.float64) + self.intercept)

    def to_json(self) -> dict[str, Any]:
        """Return the map as an entry of result.json."""
        return {"method": PLATT, "slope": self.slope, "intercept": self.intercept}


IDENTITY = Platt()


@dataclass(frozen=True)
class Isotonic:
    """The best nondecreasing map, linear between its knots and constant beyond them.

    Attributes:
        scores: The knots' scores, ascending.
        probabilities: The knots' probabilities.
    """

    scores: tuple[float, ...]
    probabilities: tuple[float, ...]

    @classmethod
    def fit(cls, tally: Tally, min_rows: int) -> Self:
        """Return the least-squares fit.

        Args:
            tally: Rows of both classes.
            min_rows: The minimum number of rows of a step. A step of few rows would disclose their labels.
        """
        from sklearn.isotonic import IsotonicRegression

        total = tally.total()
        rows = (total.negatives + total.positives)[0]
        before = np.cumsum(rows) - rows
        groups = np.unique(np.minimum(before // min_rows, max(rows.sum() // min_rows - 1, 0)), return_inverse=True)[1]
        weights = np.bincount(groups, weights=rows)
        scores = np.bincount(groups, weights=rows * total.scores) / weights
        shares = np.bincount(groups, weights=total.positives[0]) / weights
        values = IsotonicRegression().fit_transform(scores, shares, sample_weight=weights)
        steps = np.unique(values, return_inverse=True)[1]
        size = np.bincount(steps, weights=weights)
        knots = np.bincount(steps, weights=weights * scores) / size
        return cls(tuple(knots.tolist()), tuple(np.unique(values).tolist()))

    def __call__(self, scores: ArrayLike) -> Float64[np.ndarray, "*shape"]:
        """Return the probabilities of (n,) scores."""
        return np.interp(np.asarray(scores, np.float64), self.scores, self.probabilities)

    def to_json(self) -> dict[str, Any]:
        """Return the map as an entry of result.json."""
        return {"method": ISOTONIC, "scores": list(self.scores), "probabilities": list(self.probabilities)}


@dataclass(frozen=True)
class Calibrations:
    """The calibrations of several findings.

    Attributes:
        of_findings: The calibration of each finding.
    """

    of_findings: tuple[Platt | Isotonic, ...]

    def __call__(self, scores: Float64[np.ndarray, "n l"]) -> Float64[np.ndarray, "n l"]:
        """Return the probabilities of scores."""
        columns = [one(scores[:, index]) for index, one in enumerate(self.of_findings)]
        return np.stack(columns, axis=1)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the maps as entries of result.json."""
        return [one.to_json() for one in self.of_findings]


Calibration = Platt | Isotonic


def fit_calibration(method: str, tally: Tally, min_rows: int) -> Calibration:
    """Return a calibration fitted to validation rows.

    Args:
        method: `PLATT` or `ISOTONIC`.
        tally: The validation rows.
        min_rows: The minimum number of rows of a step of `Isotonic`.

    Raises:
        ValueError: A class has no rows.
    """
    negatives, positives = tally.count()
    if not (negatives and positives):
        raise ValueError(f"calibration needs rows of both classes, got {positives} positives, {negatives} negatives")
    return Platt.fit(tally) if method == PLATT else Isotonic.fit(tally, min_rows)


def read_calibration(entry: Mapping[str, Any] | None) -> Calibration:
    """Return the calibration in an entry of result.json. Without an entry (None), the sigmoid of the score."""
    if entry is None:
        return IDENTITY
    if entry["method"] == PLATT:
        return Platt(float(entry["slope"]), float(entry["intercept"]))
    return Isotonic(tuple(map(float, entry["scores"])), tuple(map(float, entry["probabilities"])))
