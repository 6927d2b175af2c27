"""Tallies: numbers of rows by class and score, from which metrics, thresholds and calibration are computed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from jaxtyping import Float64, Int, Int8, Int64
from numpy.typing import ArrayLike
from scipy.special import expit

from problems.binned_scores import centres, floors

# the partition id of rows that belong to no site
NOWHERE = -1


def sigmoid(scores: Float64[np.ndarray, "*shape"]) -> Float64[np.ndarray, "*shape"]:
    """Return the probabilities for which the scores are the logits."""
    probabilities: np.ndarray = expit(scores)
    return probabilities


@dataclass(frozen=True, eq=False)
class Tally:
    """Numbers of rows of each class and site, by score.

    Attributes:
        floors: The smallest score of each bin, ascending. If scores are known exactly, each score is a separate bin.
        scores: The score that represents each bin's scores.
        negatives, positives: The counts, one row of the array for each site.
        places: The partition id of each site. `NOWHERE` for rows without a site.
        probability_of: The map from scores to probabilities, such as a fitted calibration.
    """

    floors: Float64[np.ndarray, "bins"]
    scores: Float64[np.ndarray, "bins"]
    negatives: Int64[np.ndarray, "sites bins"]
    positives: Int64[np.ndarray, "sites bins"]
    places: tuple[int, ...]
    probability_of: Callable[[Float64[np.ndarray, "bins"]], Float64[np.ndarray, "bins"]] = sigmoid

    @property
    def probabilities(self) -> Float64[np.ndarray, "bins"]:
        """The probability of a positive in each bin."""
        return self.probability_of(self.scores)

    @classmethod
    def of_rows(cls, labels: ArrayLike, scores: ArrayLike, sites: ArrayLike | None = None) -> Self:
        """Count rows whose scores are known.

        Args:
            labels: (n,), 0 or 1.
            scores: (n,) numbers.
            sites: (n,), the partition id of each row's site, or `NOWHERE`. None: no row has a site.
        """
        score, labels = np.asarray(scores, np.float64), np.asarray(labels)
        distinct, bins = np.unique(score, return_inverse=True)
        partitions, parts = np.unique(np.full(len(score), NOWHERE) if sites is None else sites, return_inverse=True)
        shape = (len(partitions), len(distinct))
        cells = parts * len(distinct) + bins
        negatives, positives = (
            np.bincount(cells[labels == label], minlength=shape[0] * shape[1]).reshape(shape) for label in (0, 1)
        )
        return cls(distinct, distinct, negatives, positives, tuple(partitions.tolist()))

    @classmethod
    def of_bins(
        cls,
        edges: Int[np.ndarray, "edges"],
        negatives: Int64[np.ndarray, "sites edges+1"],
        positives: Int64[np.ndarray, "sites edges+1"],
        places: tuple[int, ...] = (NOWHERE,),
    ) -> Self:
        """Make a tally from counts in bins of `problems.binned_scores`. Each score counts as the centre of its bin.

        Args:
            edges: The edges of the bins, as codes.
            negatives: The counts of negatives.
            positives: The counts of positives.
            places: The partition id of each site.
        """
        return cls(floors(edges), centres(edges), negatives, positives, places)

    def total(self) -> Self:
        """Return the tally of all rows together, without sites."""
        sums = [counts.sum(axis=0, keepdims=True) for counts in (self.negatives, self.positives)]
        return replace(self, negatives=sums[0], positives=sums[1], places=(NOWHERE,))

    def sites(self) -> list[Self]:
        """Return a separate tally for each site, ordered by partition id, without the rows that have no site."""
        return [
            replace(self, negatives=self.negatives[[part]], positives=self.positives[[part]], places=(partition,))
            for part, partition in enumerate(self.places)
            if partition != NOWHERE
        ]

    def rows(self) -> tuple[Int8[np.ndarray, "n"], Float64[np.ndarray, "n"]]:
        """Return the label, 0 or 1, and the score of each row, negatives first."""
        counts = [counts.sum(axis=0) for counts in (self.negatives, self.positives)]
        labels = np.repeat(np.array([0, 1], dtype=np.int8), [int(each.sum()) for each in counts])
        return labels, np.concatenate([np.repeat(self.scores, each) for each in counts])

    def count(self) -> tuple[int, int]:
        """Return the numbers of negatives and of positives."""
        return int(self.negatives.sum()), int(self.positives.sum())

    def confusion(self, threshold: float) -> dict[str, int]:
        """Count correct and wrong predictions, if rows with at least this score are predicted positive.

        Args:
            threshold: A score. If scores are known only by bins, one of the `floors`.
        """
        predicted = self.floors >= threshold
        false, true = int(self.negatives[:, predicted].sum()), int(self.positives[:, predicted].sum())
        negatives, positives = self.count()
        return {
            "true_positives": true,
            "false_positives": false,
            "true_negatives": negatives - false,
            "false_negatives": positives - true,
        }

    def rates(self, threshold: float) -> tuple[float, float]:
        """Return sensitivity and specificity at a threshold, see `confusion`. nan: the class has no rows."""
        counts, (negatives, positives) = self.confusion(threshold), self.count()
        sensitivity = counts["true_positives"] / positives if positives else float("nan")
        return sensitivity, counts["true_negatives"] / negatives if negatives else float("nan")

    def threshold(self, metric: str, minimum: float) -> float:
        """Choose a threshold on these rows.

        Args:
            metric: "sensitivity" or "specificity".
            minimum: The required value of the metric, in (0, 1].

        Returns:
            The largest threshold with at least this sensitivity, or the smallest threshold with at least this
            specificity. The other of the two metrics is then as large as possible.

        Raises:
            ValueError: The metric's class has no rows.
        """
        negatives, positives = self.count()
        if not (positives if metric == "sensitivity" else negatives):
            raise ValueError(f"{metric} needs rows of both classes, got {positives} positives, {negatives} negatives")
        if metric == "sensitivity":
            above = np.cumsum(self.positives.sum(axis=0)[::-1])[::-1]
            return float(self.floors[np.flatnonzero(above >= _share(minimum, positives))[-1]])
        below = np.append(0, np.cumsum(self.negatives.sum(axis=0)))
        # A number above all scores, also after rounding to single precision, which a model's scores may have.
        beyond = np.nextafter(np.float32(self.floors[-1]), np.float32(np.inf))
        candidates = np.append(self.floors, max(float(beyond), np.nextafter(self.floors[-1], np.inf)))
        return float(candidates[np.flatnonzero(below >= _share(minimum, negatives))[0]])


def _share(minimum: float, count: int) -> float:
    return round(minimum * count, 9)  # 0.55 of 20 is a bit more than 11 in floating point
