"""Intervals of an AUC, and of the difference of two AUCs on the same rows, from DeLong's variance.

E. R. DeLong, D. M. DeLong and D. L. Clarke-Pearson, "Comparing the Areas under Two or More Correlated Receiver
Operating Characteristic Curves", Biometrics 44, 1988: the AUC is the mean placement of the positives among the
negatives, and also the mean placement of the negatives among the positives. Its variance is the sum of the variances of
these two means.

With ten or fewer rows of a class the variance of the placements is itself uncertain, and too small if they are skewed.
The interval then lies on the logit scale, and its variance is a weighted mean of two variances: DeLong's with weight
k - 1, and Hanley and McNeil's (Radiology 143, 1982) with weight 2, where k is the number of rows of the rarer class. An
AUC of 1 has no variance on these rows: its lower end is the smallest p with which k of k rows are ranked correctly in
at least 2.5 % of the cases, p^k = 0.025.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int, Real
from scipy.special import expit, logit, ndtri

# Up to this number of rows of a class, percentiles of bootstrap draws have too little coverage.
FEW_ROWS = 10
_WEIGHT = 2

Bounds = tuple[float, float]


def few_rows(negatives: int, positives: int) -> bool:
    """Return whether an AUC of these rows has the interval of `auc_interval`.

    Args:
        negatives: The number of negative rows.
        positives: The number of positive rows.
    """
    return 0 < min(negatives, positives) <= FEW_ROWS


def auc_interval(
    negatives: Int[np.ndarray, "bins"], positives: Int[np.ndarray, "bins"], confidence: float = 0.95
) -> Bounds:
    """Return the ends of the AUC's interval on the logit scale.

    Args:
        negatives: Counts of negative rows by score, in ascending order of the scores.
        positives: Counts of positive rows with the same scores.
        confidence: The interval's nominal coverage, in (0, 1).

    Raises:
        ValueError: A class has no rows.

    Example:
        >>> low, high = auc_interval(np.array([40, 10, 0]), np.array([0, 5, 20]))
        >>> 0.8 < low < 0.98 < high < 1
        True
    """
    row_counts = int(negatives.sum()), int(positives.sum())
    if not min(row_counts):
        raise ValueError(f"an AUC needs both classes, got {row_counts[0]} negatives and {row_counts[1]} positives")
    scores = np.arange(len(negatives))
    placed = _Placements.of(np.repeat(scores, negatives), np.repeat(scores, positives))
    auc, rarer = placed.auc, min(row_counts)
    if auc in (0, 1):
        bound = ((1 - confidence) / 2) ** (1 / rarer)
        return (bound, 1.0) if auc else (0.0, 1 - bound)
    own = placed.variance if rarer > 1 else 0.0
    variance = ((rarer - 1) * own + _WEIGHT * _hanley_mcneil(auc, *row_counts)) / (rarer - 1 + _WEIGHT)
    reach = ndtri((1 + confidence) / 2) * np.sqrt(variance) / (auc * (1 - auc))
    low, high = expit(logit(auc) + np.array([-reach, reach])).tolist()
    return low, high


@dataclass(frozen=True)
class PairedDifference:
    """The AUC of one model minus the AUC of another model on the same rows; with times, their concordances.

    Attributes:
        value: The difference.
        low: The lower end of its 95 % interval. None with too few rows of a class, or too few events.
        high: The upper end of the interval. None with too few rows of a class, or too few events.
    """

    value: float
    low: float | None
    high: float | None

    @property
    def sign(self) -> int:
        """1 or -1 if the interval excludes 0, otherwise 0."""
        if self.low is None or self.high is None:
            return 0
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


def paired_difference(
    labels: Int[np.ndarray, "n"], scores: Real[np.ndarray, "n"], reference: Real[np.ndarray, "n"]
) -> PairedDifference:
    """Compare two models' AUCs on the same rows.

    The interval uses the quantiles of Student's t. Its degrees of freedom are the number of rows of the rarer class
    minus one.

    Args:
        labels: The rows' labels, 0 or 1.
        scores: The first model's scores.
        reference: The second model's scores.

    Raises:
        ValueError: A class has no rows.
    """
    positive = labels == 1
    rarer = min(int(positive.sum()), int((~positive).sum()))
    if not rarer:
        raise ValueError("an AUC needs both classes")
    first, second = (_Placements.of(each[~positive], each[positive]) for each in (scores, reference))
    value = first.auc - second.auc
    if rarer < 2:
        return PairedDifference(value, None, None)
    from scipy.stats import t  # takes most of a second, which every command would wait for

    gap = _Placements(first.positives - second.positives, first.negatives - second.negatives)
    reach = float(t.ppf(0.975, rarer - 1)) * float(np.sqrt(gap.variance))
    return PairedDifference(value, value - reach, value + reach)


@dataclass(frozen=True, eq=False)
class _Placements:
    """For each positive the share of the negatives with lower scores, and for each negative the share of the positives
    with higher scores. A tie counts one half."""

    positives: Float64[np.ndarray, "positives"]
    negatives: Float64[np.ndarray, "negatives"]

    @classmethod
    def of(cls, negatives: Real[np.ndarray, "negatives"], positives: Real[np.ndarray, "positives"]) -> "_Placements":
        return cls(_share_below(negatives, positives), 1 - _share_below(positives, negatives))

    @property
    def auc(self) -> float:
        return float(self.positives.mean())

    @property
    def variance(self) -> float:
        """DeLong's variance of the mean. Both classes must have at least two rows."""
        return float(sum(each.var(ddof=1) / len(each) for each in (self.positives, self.negatives)))


def _share_below(reference: Real[np.ndarray, "m"], scores: Real[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
    """Return for each score the share of the reference scores below it. A tie counts one half."""
    ordered = np.sort(reference)
    below = np.searchsorted(ordered, scores, "left") + np.searchsorted(ordered, scores, "right")
    return np.asarray(below / (2 * len(ordered)))


def _hanley_mcneil(auc: float, negatives: int, positives: int) -> float:
    above_two, below_two = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    spread = (positives - 1) * (above_two - auc**2) + (negatives - 1) * (below_two - auc**2)
    return (auc * (1 - auc) + spread) / (negatives * positives)
