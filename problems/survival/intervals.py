"""Metrics of rows with times, with bootstrap intervals."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float64, Int, Int64

from problems.metrics import Interval
from problems.survival.brier import brier_scores
from problems.survival.concordance import harrell, uno
from problems.survival.dynamic_auc import dynamic_auc
from problems.survival.paired import bin_rows, count_entries


def measure_cells(
    cells: Int64[np.ndarray, "grid 2 bins"],
    horizon: int,
    survival: Float64[np.ndarray, "bins"] | None,
    entries: Int64[np.ndarray, "grid bins"] | None = None,
) -> dict[str, float]:
    """Return the metrics of counted rows that the rows determine.

    With late entries this is the concordance alone: the weights of the other metrics assume that no row enters late.

    Args:
        cells: The counts.
        horizon: The grid time of ``auc_horizon`` and ``brier_horizon``.
        survival: The predicted survival of each bin's rows until the horizon. None: no ``brier_horizon``.
        entries: The number of rows that come under observation at each grid time. None: all at grid time 0.
    """
    at = np.array([horizon])
    metrics = {"concordance": harrell(cells, entries=entries).value}
    if entries is None:
        metrics |= {"concordance_uno": uno(cells).value, "auc_horizon": float(dynamic_auc(cells, at)[0][0])}
    if survival is not None and entries is None:
        metrics["brier_horizon"] = float(brier_scores(cells, survival[:, None], at).model[0])
    return {name: value for name, value in metrics.items() if np.isfinite(value)}


def time_intervals(
    exits: Int64[np.ndarray, "n"],
    labels: Int[np.ndarray, "n"],
    scores: Float64[np.ndarray, "n"],
    intervals: int,
    horizon: int,
    survival: Float64[np.ndarray, "n"] | None,
    entries: Int64[np.ndarray, "n"],
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Return the metrics of rows with bootstrap intervals: percentiles over resamples of n rows with replacement.

    Args:
        exits: The rows' grid times.
        labels: 1 for rows with an event, else 0.
        scores: The rows' scores.
        intervals: The number of grid times.
        horizon: See `measure_cells`.
        survival: The predicted survival of each row until the horizon. None: the model predicts scores alone.
        entries: The grid times of the rows' entries.
        resamples: The number of resamples, at least 1. A resample that does not determine a metric does not count.
        confidence: The share of the resamples inside the interval, in (0, 1).
        seed: The seed of the resamples.

    Raises:
        ValueError: A score is not finite, or the rows determine no metric.
    """
    if not np.isfinite(scores).all():
        raise ValueError("predictions are not finite")
    cells, bins = bin_rows(exits, labels, scores, intervals)
    places, late = np.ravel_multi_index((exits, labels, bins), cells.shape), bool(entries.any())

    def measure(rows: Int64[np.ndarray, "n"]) -> dict[str, float]:
        counts = np.bincount(places[rows], minlength=cells.size).reshape(cells.shape)
        means = None
        if survival is not None:
            sizes = np.bincount(bins[rows], minlength=cells.shape[2])
            means = np.bincount(bins[rows], survival[rows], cells.shape[2]) / np.maximum(sizes, 1)
        entered = count_entries(entries[rows], bins[rows], counts) if late else None
        return measure_cells(counts, horizon, means, entered)

    def draw() -> Iterator[dict[str, float]]:
        rng = np.random.default_rng(seed)
        for _ in range(resamples):
            yield measure(rng.integers(len(exits), size=len(exits)))

    values = measure(np.arange(len(exits)))
    if not values:
        raise ValueError("the rows determine no concordance: an event and a later time are necessary")
    draws, tail = list(draw()), (1 - confidence) / 2
    found = {}
    for name, value in values.items():
        known = [each[name] for each in draws if name in each]
        low, high = np.quantile(known or [np.nan], (tail, 1 - tail)).tolist()
        found[name] = Interval(value, low, high)
    return found
