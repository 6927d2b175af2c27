"""A paired t-test whether two sides of a comparison differ by more than seeds explain.

A seed's data, sites and draws are the same for both sides, so their effect cancels in the difference. A rank test could
not find a difference with five seeds: the minimum p of Wilcoxon's test is then 1/16.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulations.results.output import format_count, format_metric

LEAST_SEEDS = 5
LEVEL = 0.05
COLUMNS = ("95 % interval", "p", "seeds", "verdict")  # after the column of the difference
_NO_SPREAD = 1e-150  # the square of a smaller number is 0


@dataclass(frozen=True)
class Difference:
    """One side minus the other side, over their common seeds: the mean, its 95 % interval and p.

    ``low``, ``high`` and ``p`` (two-sided, for no difference in the mean) are None for one seed. ``q`` is the p that
    `adjust` has adjusted, or None.
    """

    seeds: int
    mean: float
    low: float | None
    high: float | None
    p: float | None
    q: float | None = None

    @property
    def sign(self) -> int | None:
        """1 or -1 if the sides differ, 0 if the seeds may explain the difference, None with too few seeds."""
        if self.seeds < LEAST_SEEDS or self.p is None:
            return None
        return int(np.sign(self.mean)) if (self.p if self.q is None else self.q) < LEVEL else 0

    def verdict(self, above: str, noise: str, below: str) -> str:
        """Return the text for the `sign`; "no verdict" with too few seeds."""
        words = {1: above, 0: noise, -1: below, None: f"no verdict with {format_count(self.seeds, 'seed')}"}
        return words[self.sign]

    def format_cells(self) -> tuple[str, str, str]:
        """Return the mean, the interval and p, for people."""
        if self.low is None or self.high is None or self.p is None:
            return format_signed(self.mean), "-", "-"
        interval = f"{format_signed(self.low, self.mean)} to {format_signed(self.high, self.mean)}"
        return format_signed(self.mean), interval, f"{self.p:.2g}"

    @property
    def cells(self) -> list[Any]:
        """The cells of a `Table`: the mean, the interval, p and the seeds."""
        mean, interval, p = self.format_cells()
        return [(mean, self.mean), interval, (p, self.p), self.seeds]


def difference(one: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    """Return the difference of two sides' values by seed.

    Args:
        one: The values by seed.
        other: The values by seed, which are subtracted.

    Returns:
        The difference over common seeds; None if there are none, or if any value of any seed is not finite.
    """
    common = sorted(one.keys() & other.keys())
    values = np.array([[side[seed] for seed in common] for side in (one, other)], dtype=np.float64)
    if not common or not np.isfinite([*one.values(), *other.values()]).all():
        return None
    gaps = values[0] - values[1]
    mean = float(gaps.mean())
    if len(common) == 1:
        return Difference(1, mean, None, None, None)
    if np.ptp(gaps) <= max(np.finfo(np.float64).eps * np.abs(values).max(), _NO_SPREAD):
        # except for rounding, all seeds have the same difference, so there is no spread for a test
        return Difference(len(common), mean, mean, mean, 0.0 if mean else 1.0)
    from scipy import stats  # imported here, since it takes most of a second

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # differences that are almost equal
        test = stats.ttest_rel(*values)
    interval = test.confidence_interval(1 - LEVEL)
    return Difference(len(common), mean, float(interval.low), float(interval.high), float(test.pvalue))


def adjust(differences: Sequence[Difference | None]) -> list[Difference | None]:
    """Return differences with q, the p adjusted for the number of differences that are judged together.

    Verdicts by q have a false discovery rate of at most `LEVEL` (Y. Benjamini and Y. Hochberg, "Controlling the false
    discovery rate", Journal of the Royal Statistical Society B 57, 1995). Differences with fewer than `LEAST_SEEDS`
    seeds get no verdict and no q.

    Args:
        differences: All differences of a page or table; None: not measured.
    """
    from scipy import stats  # slow to import

    adjusted = list(differences)
    judged = [
        (index, each, each.p)
        for index, each in enumerate(differences)
        if each is not None and each.p is not None and each.sign is not None
    ]
    if judged:
        values = stats.false_discovery_control([p for _, _, p in judged])
        for (index, each, _), q in zip(judged, values.tolist(), strict=True):
            adjusted[index] = replace(each, q=q)
    return adjusted


def format_signed(value: float | None, like: float | None = None) -> str:
    """Return a difference of metrics, for people.

    Args:
        value: The difference. A plus sign is written if it is above 0. None: "-".
        like: The metric whose number format is used. None: its own format.
    """
    return ("+" if value is not None and value > 0 else "") + format_metric(value, like)
