"""A paired t-test for a comparison of two configurations over several seeds.

With the same seed both sides have the same data, sites and random draws, so their effect cancels in the difference. A
rank test is not useful here: with five seeds the minimum p of Wilcoxon's test is 1/16.
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
COLUMNS = ("95 % interval", "p", "seeds", "verdict")  # the columns of a table after the column of the difference
_NO_SPREAD = 1e-150  # the square of a smaller number underflows to 0


@dataclass(frozen=True)
class Difference:
    """The difference of a metric between two configurations, over their common seeds.

    Attributes:
        seeds: The number of common seeds.
        mean: The mean difference.
        low, high: The 95 % interval of the mean. None: there is only one seed.
        p: The two-sided p for a mean difference of 0. None: there is only one seed.
        q: The p adjusted for several comparisons, see `adjust`. None: not adjusted.
    """

    seeds: int
    mean: float
    low: float | None
    high: float | None
    p: float | None
    q: float | None = None

    @property
    def sign(self) -> int | None:
        """1 or -1 if the difference is significant, 0 if the seeds may explain it, None with too few seeds."""
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


def difference(minuend: Mapping[int, float], subtrahend: Mapping[int, float]) -> Difference | None:
    """Return the difference of two configurations' metrics.

    Args:
        minuend: A configuration's metric by seed.
        subtrahend: The other configuration's metric by seed, which is subtracted.

    Returns:
        The difference over common seeds. None: there are no common seeds, or a metric of any seed is not finite.
    """
    common = sorted(minuend.keys() & subtrahend.keys())
    values = np.array([[side[seed] for seed in common] for side in (minuend, subtrahend)], dtype=np.float64)
    if not common or not np.isfinite([*minuend.values(), *subtrahend.values()]).all():
        return None
    gaps = values[0] - values[1]
    mean = float(gaps.mean())
    if len(common) == 1:
        return Difference(1, mean, None, None, None)
    if np.ptp(gaps) <= max(np.finfo(np.float64).eps * np.abs(values).max(), _NO_SPREAD):
        # up to rounding errors all seeds have the same difference, so a test has no spread to estimate
        return Difference(len(common), mean, mean, mean, 0.0 if mean else 1.0)
    from scipy import stats  # imported here, since it takes most of a second

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # differences that are almost equal
        test = stats.ttest_rel(*values)
    interval = test.confidence_interval(1 - LEVEL)
    return Difference(len(common), mean, float(interval.low), float(interval.high), float(test.pvalue))


def adjust(differences: Sequence[Difference | None]) -> list[Difference | None]:
    """Return differences with q, which is p adjusted for the number of differences on the same page.

    Verdicts by q have a false discovery rate of at most `LEVEL` (Y. Benjamini and Y. Hochberg, "Controlling the false
    discovery rate", Journal of the Royal Statistical Society B 57, 1995). Differences with fewer than `LEAST_SEEDS`
    seeds have no verdict and no q.

    Args:
        differences: All differences of a page or table. None: a difference was not measured.
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
    """Return a difference of metrics as text, with a plus sign if the difference is above 0.

    Args:
        value: The difference. None: the text is "-".
        like: The number that selects the number format, see `format_metric`. None: the difference itself.
    """
    return ("+" if value is not None and value > 0 else "") + format_metric(value, like)
