"""The ranking of configurations, each of which was run with several seeds, in sweeps and grid searches."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence


def over_seeds(ended: Iterable[tuple[float | None, bool]]) -> tuple[int, float | None, float | None, int]:
    """Summarise the finished seeds of a configuration.

    Args:
        ended: The last metric of each finished seed, and whether sites were missing in any round.

    Returns:
        The number of seeds with a finite metric; over these seeds the metric's mean (None without seeds) and sample
        standard deviation (None for fewer than two seeds); and the number of these seeds with missing sites.
    """
    counted = [(end, missing) for end, missing in ended if end is not None and math.isfinite(end)]
    return len(counted), *mean_and_std([end for end, _ in counted]), sum(missing for _, missing in counted)


def mean_and_std(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the mean and the sample standard deviation.

    Args:
        values: The values. If any value is not finite, the mean is nan and the deviation None.

    Returns:
        The mean (None without values) and the deviation (None for fewer than two values).
    """
    if not all(map(math.isfinite, values)):  # fmean raises an error for infinities of both signs
        return math.nan, None
    return statistics.fmean(values) if values else None, statistics.stdev(values) if len(values) > 1 else None


def rank(finished: int, missing: int, mean: float | None, mode: str) -> tuple[int, int, float]:
    """Return a configuration's sort key. The best configuration has the smallest key.

    Configurations are ranked by the number of seeds that finished with all sites, then by the number of finished
    seeds, then by the mean of the last round's metric over the finished seeds. Means over different numbers of seeds
    are never compared: seeds that failed or were stopped would have lowered the mean, and a run from which diverging
    sites were missing looks too good.

    Args:
        finished: The number of finished seeds.
        missing: The number of finished seeds with missing sites.
        mean: The mean of the metric. None if no seed finished.
        mode: "min" or "max", the better direction of the metric.
    """
    return missing - finished, -finished, (1 if mode == "min" else -1) * (mean or 0.0)
