"""Rows of both classes counted in few groups of neighbouring scores, which suffice for ROC and decision curves.

The net benefit is of A. J. Vickers and E. B. Elkin, "Decision curve analysis: a novel method for evaluating prediction
models", Medical Decision Making 26, 2006.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from jaxtyping import Float64, Int64

from problems.least_cell import LEAST_CELL, is_small
from problems.tallies import Tally

# the largest number of groups, about
MAX_GROUPS = 100


@dataclass(frozen=True, eq=False)
class ScoreGroups:
    """Numbers of rows in groups of neighbouring scores.

    Attributes:
        scores: The smallest score of each group, ascending.
        probabilities: The probability of a positive at this score.
        negatives, positives: The counts.
    """

    scores: Float64[np.ndarray, groups]
    probabilities: Float64[np.ndarray, groups]
    negatives: Int64[np.ndarray, groups]
    positives: Int64[np.ndarray, groups]

    @classmethod
    def of(cls, tally: Tally, least: int = 1, threshold: float | None = None, *, hidden: bool = False) -> Self:
        """Group the rows of a tally, so each group has about the same share of both classes.

        Args:
            tally: A tally with at least one row.
            least: The least number of rows of a class in a group, if it has any. A group has `LEAST_CELL` rows or more.
            threshold: A score that starts a group if the groups on both sides are large enough.
            hidden: Whether no group starts at the threshold, since the counts there are withheld.
        """
        total = tally.total()
        rows = np.stack((total.negatives[0], total.positives[0]))
        used = np.flatnonzero(rows.any(axis=0))
        rows, floors = rows[:, used], total.floors[used]
        everything = rows.sum(axis=1)
        share = (rows / np.maximum(everything, 1)[:, None]).mean(axis=0)
        cut = len(used) if threshold is None else int(np.searchsorted(floors, threshold))
        starts, here, before, filled = [0], np.zeros(2, np.int64), np.zeros(2, np.int64), 0.0
        for index in range(len(used) - 1):
            here, filled = here + rows[:, index], filled + share[index]
            beyond = everything - before - here
            at_cut = index + 1 == cut
            enough = (filled >= 1 / MAX_GROUPS or at_cut) and min(here.sum(), beyond.sum()) >= LEAST_CELL
            if enough and not (at_cut and hidden) and not is_small([*here.tolist(), *beyond.tolist()], least):
                starts.append(index + 1)
                before, here, filled = before + here, np.zeros(2, np.int64), 0.0
        negatives, positives = np.add.reduceat(rows, starts, axis=1)
        return cls(floors[starts], total.probabilities[used][starts], negatives, positives)

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """Return the groups of an entry of result.json."""
        scores, probabilities = (np.array(entry[name], np.float64) for name in ("from_score", "from_probability"))
        negatives, positives = (np.array(entry[name], np.int64) for name in ("negatives", "positives"))
        return cls(scores, probabilities, negatives, positives)

    def to_json(self) -> dict[str, list[float]]:
        """Return the groups as an entry of result.json."""
        return {
            "from_score": self.scores.tolist(),
            "from_probability": self.probabilities.tolist(),
            "negatives": self.negatives.tolist(),
            "positives": self.positives.tolist(),
        }

    def roc(self) -> tuple[Float64[np.ndarray, groups + 1], Float64[np.ndarray, groups + 1]]:
        """Return the false and the true positive rates if the rows from a group on count as positive."""
        false, true = (
            np.append(0, np.cumsum(counts[::-1])) / max(counts.sum(), 1) for counts in (self.negatives, self.positives)
        )
        return false, true

    def youden(self) -> tuple[float, float]:
        """Return the smallest score of the group from which on sensitivity + specificity - 1 is largest, and this sum.

        W. J. Youden, "Index for rating diagnostic tests", Cancer 3, 1950.
        """
        false, true = self.roc()
        best = int(np.argmax((true - false)[1:]))
        return float(self.scores[::-1][best]), float((true - false)[1:][best])

    def decision(
        self,
    ) -> tuple[Float64[np.ndarray, points], Float64[np.ndarray, points], Float64[np.ndarray, points]]:
        """Return the decision curve.

        Returns:
            The threshold probabilities, ascending: the borders of the groups. For each, the net benefit per row of
            treating the rows with at least this probability, and of treating all rows.
        """
        thresholds, first = np.unique(self.probabilities, return_index=True)
        inside = (thresholds > 0) & (thresholds < 1)
        thresholds, first = thresholds[inside], first[inside]
        rows = self.negatives.sum() + self.positives.sum()
        odds = thresholds / (1 - thresholds)
        false, true = (np.cumsum(counts[::-1])[::-1][first] for counts in (self.negatives, self.positives))
        everyone: np.ndarray = (self.positives.sum() - self.negatives.sum() * odds) / rows
        return thresholds, (true - false * odds) / rows, everyone
