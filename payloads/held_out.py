"""Evaluation on the sites' held-out rows: exchanges that give the server all scores up to a bin.

In each exchange a site counts its rows of each class in each bin. A site with a least cell counts groups of rows
instead, each in the bin of its mean score. The first bins are fixed. The edges of finer bins follow from the counts of
all sites, and travel with the next question. No score leaves a site.
"""

import dataclasses
from typing import Self

import numpy as np
from numpy.typing import NDArray

from payloads.handshake import SiteReport
from payloads.record import FloatArray, IntArray, Payload, PayloadError, array

# The exchanges: one counts the rows that a site holds out for evaluation. At the end of a run that evaluates on
# validation rows, the other counts the test rows.
SCORE_COUNTS, TEST_SCORE_COUNTS = "score-counts", "test-score-counts"
EVALUATIONS = (SCORE_COUNTS, TEST_SCORE_COUNTS)
BINS = 2048


def held_counts(report: SiteReport, phase: str) -> IntArray | None:
    """Return the numbers of negatives and positives that a site counts in an exchange. None: it has no such rows.

    Args:
        report: The site's report.
        phase: An exchange of `EVALUATIONS`.
    """
    return report.test_counts if phase == TEST_SCORE_COUNTS else report.held_out_counts


@dataclasses.dataclass(frozen=True, eq=False)
class ScoreEdges(Payload):
    """Edges of `BINS` bins of scores, ascending, as codes of `problems.binned_scores`."""

    edges: IntArray = array(BINS - 1, kind="int")

    def check_order(self) -> Self:
        """Return the record; raise `PayloadError` if the edges descend."""
        if (self.edges[1:] < self.edges[:-1]).any():
            raise PayloadError("ScoreEdges.edges: they descend, allowed: edges in ascending order")
        return self


@dataclasses.dataclass(frozen=True, eq=False)
class ScoreCounts(Payload):
    """The numbers of a site's held-out negatives and positives with scores in each bin."""

    negatives: IntArray = array(BINS, kind="int", combined="total")
    positives: IntArray = array(BINS, kind="int", combined="total")

    @classmethod
    def of(cls, places: NDArray[np.int64], labels: NDArray[np.bool_]) -> Self:
        """Count rows by class and bin.

        Args:
            places: The bin of each row, 0 to `BINS` - 1, (n,).
            labels: True for each positive row, (n,).
        """
        negatives, positives = (
            np.bincount(places[labels == label], minlength=BINS).astype(np.int32) for label in (False, True)
        )
        return cls(negatives=negatives, positives=positives)

    def check_rows(self, held_out: IntArray | None) -> None:
        """Check the counts against the number of the site's held-out rows.

        Args:
            held_out: The numbers of negatives and positives in the site's report, (2,). None: no held-out rows.

        Raises:
            PayloadError: A count is below 0, or the counts of a class do not add up to its rows.
        """
        held = (0, 0) if held_out is None else held_out.tolist()
        for name, rows in zip(("negatives", "positives"), held, strict=True):
            counts = getattr(self, name)
            if (counts < 0).any() or counts.sum(dtype=np.int64) != rows:
                raise PayloadError(f"ScoreCounts.{name}: counts of {counts.sum()} rows, but the site holds out {rows}")


@dataclasses.dataclass(frozen=True, eq=False)
class GroupCounts(ScoreCounts):
    """The numbers of rows in groups with a mean score in each bin, and the deviations of the scores in these groups.

    Without deviations the counts are of single rows.
    """

    negative_spreads: FloatArray | None = array(BINS, optional=True)
    positive_spreads: FloatArray | None = array(BINS, optional=True)

    def check_rows(self, held_out: IntArray | None) -> None:
        """Check the counts as in `ScoreCounts.check_rows`, and that no deviation is negative.

        Args:
            held_out: As in `ScoreCounts.check_rows`.

        Raises:
            PayloadError: As in `ScoreCounts.check_rows`, or a deviation is negative.
        """
        super().check_rows(held_out)
        for spreads in (self.negative_spreads, self.positive_spreads):
            if spreads is not None and (spreads < 0).any():
                raise PayloadError("GroupCounts: got a negative deviation, allowed: numbers >= 0")
