"""Evaluation on rows that sites hold out: two exchanges after which the server knows all scores up to a bin.

First each site tells mean and variance of its scores; then, on the bins that the pooled ones make, how many of each
class lie in which. No score leaves a site.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Self

import numpy as np
from numpy.typing import NDArray

from payloads.record import FloatArray, IntArray, Payload, PayloadError, array

SCORE_MOMENTS = "score-moments"
SCORE_COUNTS = "score-counts"
BINS = 2048
# the logistic distribution of variance 1 has this scale
_SCALE = math.sqrt(3) / math.pi


@dataclasses.dataclass(frozen=True, eq=False)
class ScoreMoments(Payload):
    """Number, mean and variance of a site's held-out scores; 0 of all where it holds out no row."""

    count: IntArray = array(1, kind="int")
    mean: FloatArray = array(1)
    variance: FloatArray = array(1)

    @classmethod
    def of(cls, scores: NDArray[np.float64]) -> Self:
        """The moments of (n,) scores."""
        mean, variance = (scores.mean(), scores.var()) if len(scores) else (0.0, 0.0)
        return cls(count=np.array([len(scores)]), mean=np.array([mean]), variance=np.array([variance]))

    def check_rows(self, held_out: IntArray) -> None:
        """Raise `PayloadError` unless they can be those of (2,) negatives and positives that a site holds out."""
        if self.count[0] != held_out.sum():
            raise PayloadError(f"ScoreMoments.count: got {self.count[0]}, but the site holds out {held_out.sum()} rows")
        if self.variance[0] < 0:
            raise PayloadError(f"ScoreMoments.variance: got {self.variance[0]}, allowed: 0 or above")


@dataclasses.dataclass(frozen=True, eq=False)
class ScoreBins(Payload):
    """`BINS` bins, equally likely under a logistic distribution of some mean and deviation: fine where scores are."""

    mean: FloatArray = array(1)
    deviation: FloatArray = array(1)

    def places(self, scores: NDArray[np.float64]) -> NDArray[np.int64]:
        """(n,) the bin of each of (n,) scores."""
        with np.errstate(over="ignore"):
            shares = 1 / (1 + np.exp(-(scores - self.mean) / (self.deviation * _SCALE)))
        return np.minimum((shares * BINS).astype(np.int64), BINS - 1)

    def centres(self) -> NDArray[np.float64]:
        """(`BINS`,) a score in the middle of each bin."""
        shares = (np.arange(BINS) + 0.5) / BINS
        centres: NDArray[np.float64] = self.mean + self.deviation * _SCALE * np.log(shares / (1 - shares))
        return centres


@dataclasses.dataclass(frozen=True, eq=False)
class ScoreCounts(Payload):
    """How many held-out negatives and positives of a site have scores in each bin."""

    negatives: IntArray = array(BINS, kind="int")
    positives: IntArray = array(BINS, kind="int")

    @classmethod
    def of(cls, places: NDArray[np.int64], labels: NDArray[np.bool_]) -> Self:
        """The counts of (n,) bins and (n,) labels, true for a positive."""
        negatives, positives = (
            np.bincount(places[labels == label], minlength=BINS).astype(np.int32) for label in (False, True)
        )
        return cls(negatives=negatives, positives=positives)

    def check_rows(self, held_out: IntArray) -> None:
        """Raise `PayloadError` unless they are of (2,) negatives and positives that a site holds out."""
        for name, counts, rows in zip(
            ("negatives", "positives"), (self.negatives, self.positives), held_out, strict=True
        ):
            if (counts < 0).any() or counts.sum(dtype=np.int64) != rows:
                raise PayloadError(f"ScoreCounts.{name}: counts of {counts.sum()} rows, but the site holds out {rows}")
