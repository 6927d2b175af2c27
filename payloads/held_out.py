"""The records of an evaluation on the sites' held-out rows, from which the server learns histograms of scores.

In each exchange a site counts its rows by class and by bin of their score. A site with a least cell (the smallest
count of rows that may leave it) counts groups of rows instead, each in the bin of its mean score. The first bins are
fixed. The server computes the edges of finer bins from the counts of all sites, and sends them with the next question.
No score leaves a site. If labels are numbers, a site sends sums over its rows instead.
"""

import dataclasses
from fractions import Fraction
from typing import Self

import numpy as np
from numpy.typing import NDArray

from payloads.digit_sums import DIGITS, from_digits, to_digits
from payloads.handshake import SiteReport
from payloads.record import FloatArray, IntArray, Payload, PayloadError, array

# The names of the exchanges. The first counts the rows that a site holds out for evaluation. If these are validation
# rows, the second counts the test rows, at the end of the run.
SCORE_COUNTS, TEST_SCORE_COUNTS = "score-counts", "test-score-counts"
# At the end of a run, two more kinds of exchange count several sets of these rows: the groups of a column, and all rows
# with a column permuted. The message's config has the number of the column under `COLUMN`.
SUBGROUP_COUNTS, TEST_SUBGROUP_COUNTS = "subgroup-counts", "test-subgroup-counts"
IMPORTANCE_COUNTS, TEST_IMPORTANCE_COUNTS = "importance-counts", "test-importance-counts"
# If rows have times to an event, further exchanges count the rows by interval of time, class and bin of the score.
TIME_COUNTS, TEST_TIME_COUNTS = "time-counts", "test-time-counts"
OF_TIMES = (TIME_COUNTS, TEST_TIME_COUNTS)
OF_GROUPS = (SUBGROUP_COUNTS, TEST_SUBGROUP_COUNTS)
OF_SETS = (*OF_GROUPS, IMPORTANCE_COUNTS, TEST_IMPORTANCE_COUNTS)
# If rows have several labels, the findings, other exchanges count the rows in which each finding is known.
FINDING_COUNTS, TEST_FINDING_COUNTS = "finding-counts", "test-finding-counts"
OF_FINDINGS = (FINDING_COUNTS, TEST_FINDING_COUNTS)
# At the end of a run, a site may count the scores of the model after its own further steps.
TUNED_COUNTS, TEST_TUNED_COUNTS = OF_TUNED = ("tuned-counts", "test-tuned-counts")
OF_TEST_ROWS = (
    TEST_SCORE_COUNTS,
    TEST_SUBGROUP_COUNTS,
    TEST_IMPORTANCE_COUNTS,
    TEST_TIME_COUNTS,
    TEST_FINDING_COUNTS,
    TEST_TUNED_COUNTS,
)
EVALUATIONS = (SCORE_COUNTS, TEST_SCORE_COUNTS, *OF_SETS, *OF_TIMES, *OF_FINDINGS, *OF_TUNED)
COLUMN = "column"
# the number of sums in `ErrorDigits`: the fields of `problems.number_metrics.ErrorSums`
SUMS = 7
BINS = 2048
TIME_BINS = 322
"""The number of bins of scores in `TimeCounts`, whose edges are `problems.binned_scores.RISK_EDGES`."""


def held_counts(report: SiteReport, phase: str) -> IntArray | None:
    """Return the numbers of negatives and positives that a site counts in an exchange. None: the site has no such rows.

    The numbers are (2,), or (l, 2) in an exchange that counts l findings.

    Args:
        report: The site's report of the handshake.
        phase: An exchange of `EVALUATIONS`.
    """
    if phase in OF_FINDINGS:
        return report.test_findings if phase in OF_TEST_ROWS else report.held_out_findings
    return report.test_counts if phase in OF_TEST_ROWS else report.held_out_counts


@dataclasses.dataclass(frozen=True, eq=False)
class ScoreEdges(Payload):
    """The server's question: ascending edges of `BINS` bins of scores, as codes of `problems.binned_scores`."""

    edges: IntArray = array(BINS - 1, kind="int")

    def check_order(self) -> Self:
        """Return the record; raise `PayloadError` if the edges are not in ascending order."""
        if (self.edges[1:] < self.edges[:-1]).any():
            raise PayloadError("ScoreEdges.edges: got edges that descend, expected ascending order")
        return self


@dataclasses.dataclass(frozen=True, eq=False)
class FindingEdges(Payload):
    """The server's question about l findings: the edges of `ScoreEdges` for each finding."""

    edges: IntArray = array("l", BINS - 1, kind="int")

    def check_order(self) -> Self:
        """Return the record; raise `PayloadError` as in `ScoreEdges.check_order`."""
        for edges in self.edges:
            ScoreEdges(edges=edges).check_order()
        return self


@dataclasses.dataclass(frozen=True, eq=False)
class ScoreCounts(Payload):
    """A site's answer: the numbers of its held-out negatives and positives with scores in each bin."""

    negatives: IntArray = array(BINS, kind="int", combined="total")
    positives: IntArray = array(BINS, kind="int", combined="total")

    @classmethod
    def of(cls, bins: NDArray[np.int64], labels: NDArray[np.bool_]) -> Self:
        """Count rows by class and bin.

        Args:
            bins: The bin of each row, 0 to `BINS` - 1, (n,).
            labels: True for each positive row, (n,).
        """
        negatives, positives = (
            np.bincount(bins[labels == label], minlength=BINS).astype(np.int32) for label in (False, True)
        )
        return cls(negatives=negatives, positives=positives)

    def check_rows(self, held_out: IntArray | None) -> None:
        """Check the counts against the number of the site's held-out rows.

        Args:
            held_out: The numbers of negatives and positives in the site's report, (2,). None: no such rows.

        Raises:
            PayloadError: A count is below 0, or the counts of a class do not add up to its rows.
        """
        reported = (0, 0) if held_out is None else held_out.tolist()
        for name, rows in zip(("negatives", "positives"), reported, strict=True):
            counts = getattr(self, name)
            if (counts < 0).any() or counts.sum(dtype=np.int64) != rows:
                raise PayloadError(f"ScoreCounts.{name}: counts of {counts.sum()} rows, but the site holds out {rows}")


@dataclasses.dataclass(frozen=True, eq=False)
class GroupCounts(ScoreCounts):
    """The answer of a site that counts groups of rows: the rows of the groups with a mean score in each bin.

    The spreads are the standard deviations of the scores in these groups. Without spreads, single rows are counted.
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


@dataclasses.dataclass(frozen=True, eq=False)
class SetCounts(Payload):
    """A site's answer about several sets of rows: the counts of each set as in `ScoreCounts`, one set after another.

    Attributes:
        negatives, positives: The counts. A set that the site does not reveal has zeros.
        withheld: For each set, 1 if the site does not reveal its counts, else 0.
    """

    negatives: IntArray = array("s", kind="int", combined="total")
    positives: IntArray = array("s", kind="int", combined="total")
    withheld: IntArray = array("w", kind="int", combined="total")

    def by_set(self) -> tuple[IntArray, IntArray]:
        """Return the counts of negatives and of positives, each (sets, `BINS`)."""
        return self.negatives.reshape(-1, BINS), self.positives.reshape(-1, BINS)

    def check_rows(self, held_out: IntArray | None, sets: int, sites: int = 1, *, disjoint: bool) -> None:
        """Check the counts against the numbers of held-out rows in the reports.

        Args:
            held_out: The numbers of negatives and positives, (2,). None: no such rows.
            sets: The number of sets.
            sites: The number of sites whose counts are added up.
            disjoint: Whether no row is in two sets.

        Raises:
            PayloadError: The lengths are wrong, a count is below 0, or more rows are counted than exist.
        """
        if (len(self.negatives), len(self.withheld)) != (sets * BINS, sets):
            got = f"{len(self.negatives)} counts and {len(self.withheld)} marks"
            raise PayloadError(f"SetCounts: got {got}, expected {sets} sets of {BINS} counts")
        reported = (0, 0) if held_out is None else held_out.tolist()
        for name, rows, counts in zip(("negatives", "positives"), reported, self.by_set(), strict=True):
            totals = counts.sum(axis=1, dtype=np.int64)
            if (counts < 0).any() or (totals.sum() if disjoint else totals.max(initial=0)) > rows:
                raise PayloadError(f"SetCounts.{name}: counts of {totals.tolist()} rows, expected at most {rows}")
        if ((self.withheld < 0) | (self.withheld > sites)).any():
            raise PayloadError(f"SetCounts.withheld: got {self.withheld.tolist()}, expected 0 to {sites}")


@dataclasses.dataclass(frozen=True, eq=False)
class ErrorDigits(Payload):
    """The answer of a site whose labels are numbers: sums over its held-out rows, as digits.

    The sums are the fields of `problems.number_metrics.ErrorSums`, which begin with the number of rows.
    """

    digits: IntArray = array(SUMS * DIGITS, kind="int", combined="total")

    @classmethod
    def of(cls, sums: list[float]) -> Self:
        """Write sums over rows as digits.

        Raises:
            ValueError: A sum is not finite or too large.
        """
        return cls(digits=to_digits(sums))

    @property
    def sums(self) -> list[Fraction]:
        """The sums."""
        return from_digits(self.digits)

    def check_rows(self, held_out: IntArray | None) -> None:
        """Check the sums against the number of the site's held-out rows.

        Args:
            held_out: As in `ScoreCounts.check_rows`.

        Raises:
            PayloadError: The number of rows differs, or a sum of squares or absolute values is below 0.
        """
        reported = 0 if held_out is None else int(held_out.sum())
        rows, _, *powers, _, _ = self.sums
        if rows != reported:
            raise PayloadError(f"ErrorDigits: sums over {float(rows):g} rows, expected {reported}")
        if min(powers) < 0:
            raise PayloadError("ErrorDigits: got a sum of squares or of absolute values below 0")


@dataclasses.dataclass(frozen=True, eq=False)
class TimeCounts(Payload):
    """A site's answer about times: its test or validation rows by interval of time, class (negatives first) and bin."""

    counts: IntArray = array("s", kind="int", combined="total")

    @property
    def cells(self) -> IntArray:
        """The counts (intervals, 2, `TIME_BINS`)."""
        return self.counts.reshape(-1, 2, TIME_BINS)

    def check_rows(self, held_out: IntArray | None) -> None:
        """Check the counts against the number of the site's held-out rows.

        Args:
            held_out: As in `ScoreCounts.check_rows`.

        Raises:
            PayloadError: The number of counts is wrong, a count is below 0, or the counts of a class do not add up.
        """
        reported = [0, 0] if held_out is None else held_out.tolist()
        if len(self.counts) % (2 * TIME_BINS) or (self.counts < 0).any():
            raise PayloadError(f"TimeCounts: got {len(self.counts)} counts, or counts below 0")
        if (got := self.cells.sum(axis=(0, 2), dtype=np.int64).tolist()) != reported:
            raise PayloadError(f"TimeCounts: counts of {got} rows by class, but the site holds out {reported}")


@dataclasses.dataclass(frozen=True, eq=False)
class FindingCounts(Payload):
    """A site's answer about findings: the counts of each finding as in `ScoreCounts`, one finding after another."""

    negatives: IntArray = array("s", kind="int", combined="total")
    positives: IntArray = array("s", kind="int", combined="total")

    def by_finding(self) -> tuple[IntArray, IntArray]:
        """Return the counts of zeros and of ones, each (findings, `BINS`)."""
        return self.negatives.reshape(-1, BINS), self.positives.reshape(-1, BINS)

    def check_rows(self, held_out: IntArray | None) -> None:
        """Check the counts against the numbers of held-out rows in which each finding is known.

        Args:
            held_out: The numbers of zeros and ones of each finding in the site's report, (l, 2). None: no such rows.

        Raises:
            PayloadError: The number of counts is wrong, a count is below 0, or the counts do not add up to the rows.
        """
        reported = np.zeros((0, 2), np.int64) if held_out is None else held_out
        if {len(self.negatives), len(self.positives)} != {len(reported) * BINS}:
            raise PayloadError(f"FindingCounts: got {len(self.negatives)} counts, expected {len(reported)} x {BINS}")
        for name, rows, counts in zip(("negatives", "positives"), reported.T, self.by_finding(), strict=True):
            totals = counts.sum(axis=1, dtype=np.int64)
            if (counts < 0).any() or (totals != rows).any():
                got = f"counts of {totals.tolist()} rows by finding"
                raise PayloadError(f"FindingCounts.{name}: {got}, expected {rows.tolist()}")


# the records of an evaluation on held-out rows, each with `check_rows`
HELD_OUT_RECORDS = (ScoreCounts, ErrorDigits, TimeCounts, FindingCounts)
REPLIES: dict[str, type[Payload]] = {
    **dict.fromkeys(EVALUATIONS, GroupCounts),
    **dict.fromkeys(OF_SETS, SetCounts),
    **dict.fromkeys(OF_TIMES, TimeCounts),
    **dict.fromkeys(OF_FINDINGS, FindingCounts),
}
"""The type of a site's answer in each exchange."""
