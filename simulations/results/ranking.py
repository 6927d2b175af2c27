"""Summarises configurations over their seeds, and ranks them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence


def over_seeds(ended: Iterable[tuple[float | None, bool]]) -> tuple[int, float | None, float | None, int]:
    """Summarise the finished seeds of a configuration.

    Args:
        ended: For each seed, the last metric, and whether sites were missing.

    Returns:
        The number of seeds with a finite metric, its mean (None for no seed), its sample standard
            deviation (None for fewer than two), and the number of these seeds in which sites were missing.
    """
    counted = [(end, missing) for end, missing in ended if end is not None and math.isfinite(end)]
    return len(counted), *mean_and_std([end for end, _ in counted]), sum(missing for _, missing in counted)


def mean_and_std(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the mean and the sample standard deviation.

    Args:
        values: The values; if one of them is not finite, the mean is nan and the deviation None.

    Returns:
        The mean, None for no value, and the deviation, None for fewer than two.
    """
    if not all(map(math.isfinite, values)):  # fmean would raise an error for infinities of both signs
        return math.nan, None
    return statistics.fmean(values) if values else None, statistics.stdev(values) if len(values) > 1 else None


def rank(finished: int, missing: int, mean: float | None, mode: str) -> tuple[int, int, float]:
    """Return a configuration's sort key, the best first.

    It ranks by the number of seeds that finished with all sites, then by the number that finished, then by the mean of
    the last round's metric over these. A mean over fewer seeds is not compared with one over more: seeds that failed or
    were stopped were the worse ones, and training without the sites that diverge looks better than it is.

    Args:
        finished: The number of seeds that finished.
        missing: The number of these in which sites were missing.
        mean: None if no seed finished.
        mode: "min" or "max", whichever is better for the metric.
    """
    return missing - finished, -finished, (1 if mode == "min" else -1) * (mean or 0.0)
