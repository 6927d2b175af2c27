"""Configurations over their seeds, and which of them is the best."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable


def over_seeds(ended: Iterable[tuple[float | None, bool]]) -> tuple[int, float | None, float | None, int]:
    """What the finished seeds of a configuration have in common.

    Args:
        ended: of each, the last metric, and whether sites were missing.

    Returns:
        How many have a finite metric, its mean and sample standard deviation; of how many of these sites were missing.
    """
    counted = [(end, missing) for end, missing in ended if end is not None and math.isfinite(end)]
    ends = [end for end, _ in counted]
    mean = statistics.fmean(ends) if ends else None
    spread = statistics.stdev(ends) if len(ends) > 1 else None
    return len(ends), mean, spread, sum(missing for _, missing in counted)


def rank(finished: int, missing: int, mean: float | None, mode: str) -> tuple[int, int, float]:
    """Where a configuration stands among others, the best first: by seeds that finished with all sites, by those that
    finished, then by the mean of the last round's metric over them.

    A mean over fewer seeds is not compared with one over more: seeds that failed or were stopped were the worse ones,
    and so is training without the sites that diverge.
    """
    return missing - finished, -finished, (1 if mode == "min" else -1) * (mean or 0.0)
