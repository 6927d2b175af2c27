"""Metrics of a binary classifier with 95 % bootstrap intervals, from counts of rows by score.

Rows are resampled with replacement, both classes together (B. Efron, "Bootstrap methods: another look at the
jackknife", Annals of Statistics 7, 1979): a multinomial draw of the counts. An interval is from the 2.5th to the 97.5th
percentile of the metric over the draws.

The interval of an AUC with ten or fewer rows of a class is DeLong's on the logit scale (`problems.delong`).

The calibration error has a different interval, since chance adds to the error: on average the rows have a larger error
than the model, and the draws have a larger error than the rows. Let g_b be the contribution of bin b of the probability
to the error sum_b |g_b|, and d_b the difference between a draw's contribution and g_b. The interval contains those
errors sum_b |t g_b|, t >= 0, for which sum_b |g_b| is among the middle 95 % of sum_b |t g_b + d_b| over the draws.
Bisection finds the ends of t.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from problems.delong import auc_interval, few_rows
from problems.least_cell import is_small
from problems.metrics import ranking_metrics
from problems.tallies import Tally

# metrics of a ranking, and metrics of probabilities
RANKING = ("auc", "pauc_fpr30", "pauc_fpr50", "average_precision")
AUC = RANKING[0]
BRIER, ECE = "brier", "ece"
FIGURES = (*RANKING, BRIER, ECE)
RELIABILITY_BINS = 10
DRAWS = 1000
LEVELS = (2.5, 97.5)
# The steps of the bisection for t, after which the ends are exact to a millionth of the error.
_HALVINGS = 20
# number of counts in memory at a time
_CELLS = 2_000_000

Interval = list[float] | None


def measure(
    probabilities: Float64[np.ndarray, "bins"],
    negatives: Int64[np.ndarray, "*draws bins"],
    positives: Int64[np.ndarray, "*draws bins"],
) -> tuple[
    dict[str, Float64[np.ndarray, "*draws"]], Float64[np.ndarray, "*draws 10"], Float64[np.ndarray, "*draws 10"]
]:
    """Return the metrics of one or more samples of rows, and the calibration in each bin of the probability.

    Args:
        probabilities: The probabilities of a positive, ascending.
        negatives: The numbers of negative rows with these probabilities.
        positives: The numbers of positive rows with these probabilities.

    Returns:
        The metrics, nan if a sample lacks a class that the metric needs; for each bin the sum over rows of label minus
        probability, divided by the number of all rows; and for each bin the share of positives, nan without rows.
    """
    true, false = (
        np.concatenate((np.zeros((*counts.shape[:-1], 1), np.int64), np.cumsum(counts[..., ::-1], axis=-1)), axis=-1)
        for counts in (positives, negatives)
    )
    ranking = ranking_metrics(true, false)
    rows = negatives + positives
    count = rows.sum(axis=-1)
    squares = negatives * probabilities**2 + positives * (1 - probabilities) ** 2
    inside = (reliability_bin(probabilities)[:, None] == np.arange(RELIABILITY_BINS)).astype(np.float64)
    gaps = (positives - rows * probabilities) @ inside / count[..., None]
    observed = _shares(negatives, positives, inside)
    figures = {name: ranking[name] for name in RANKING}
    figures |= {BRIER: np.asarray(squares.sum(axis=-1) / count), ECE: np.asarray(np.abs(gaps).sum(axis=-1))}
    return figures, gaps, observed


def share_interval(hits: int, rows: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of rows (E. B. Wilson, "Probable inference", JASA 22, 1927).

    Args:
        hits: The number of rows that count.
        rows: The number of all rows, at least 1.

    Example:
        >>> tuple(round(end, 3) for end in share_interval(9, 10))
        (0.596, 0.982)
    """
    share, z = hits / rows, 1.959964
    centre, half = share + z**2 / (2 * rows), z * ((share * (1 - share) + z**2 / (4 * rows)) / rows) ** 0.5
    return (centre - half) / (1 + z**2 / rows), (centre + half) / (1 + z**2 / rows)


def reliability_bin(probabilities: Float64[np.ndarray, "bins"]) -> Int64[np.ndarray, "bins"]:
    """Return the bin of each probability, counted from 0. The bins are equally wide and include their upper end."""
    return np.searchsorted(np.linspace(0, 1, RELIABILITY_BINS + 1)[1:-1], probabilities)


def point_figures(tally: Tally) -> dict[str, float | None]:
    """Return the metrics of all rows of a tally, without intervals, whose computation takes a hundred times as long.

    Args:
        tally: A tally with at least one row.

    Returns:
        The metrics `FIGURES`, None if a class is missing.
    """
    value, _, _ = measure(*_counts(tally))
    return {name: None if np.isnan(value[name]) else float(value[name]) for name in FIGURES}


def describe(tally: Tally, rng: np.random.Generator, draws: int = DRAWS, least: int = 1) -> dict[str, Any]:
    """Return the metrics of all rows of a tally, each with its interval.

    Args:
        tally: A tally with at least one row.
        rng: The generator that draws the samples.
        draws: The number of samples.
        least: The least cell of the bins of ``reliability``: a bin has either no rows of a class or at least as many.
            Neighbouring bins with fewer rows are joined.

    Returns:
        The metrics `FIGURES` as [value, low, high], None if a class is missing; and ``reliability``: for each bin of
        the probability with rows, the ends of the bin, the number of ``rows``, their mean ``predicted`` probability and
        the ``observed`` share of positives with its interval.
    """
    probabilities, negatives, positives = _counts(tally)
    counts = np.concatenate((negatives, positives))
    value, gaps, _ = measure(probabilities, negatives, positives)
    bins = reliability_bin(probabilities)
    joined = _join_bins(bins, negatives, positives, least)
    inside = (joined[bins][:, None] == np.arange(RELIABILITY_BINS)).astype(np.float64)
    observed, shares = _shares(negatives, positives, inside), []
    samples = []
    for size in _chunks(draws, max(_CELLS // len(counts), 1)):
        drawn = rng.multinomial(counts.sum(), counts / counts.sum(), size=size)
        parts = np.split(drawn, 2, axis=1)
        samples.append(measure(probabilities, *parts))
        shares.append(samples[-1][2] if least == 1 else _shares(parts[0], parts[1], inside))
    report: dict[str, Any] = {}
    for name in (*RANKING, BRIER):
        report[name] = _interval(float(value[name]), np.concatenate([figures[name] for figures, _, _ in samples]))
    if few_rows(int(negatives.sum()), int(positives.sum())):
        report[AUC] = [float(value[AUC]), *auc_interval(negatives, positives)]
    report[ECE] = _interval_of_error(gaps, np.concatenate([drawn_gaps for _, drawn_gaps, _ in samples]) - gaps)
    drawn_shares = np.concatenate(shares)
    report["reliability"] = [
        {
            "from": number / RELIABILITY_BINS,
            "to": (number + int(np.count_nonzero(joined == number))) / RELIABILITY_BINS,
            "rows": int(weights.sum()),
            "predicted": float(weights @ probabilities / weights.sum()),
            "observed": _interval(float(observed[number]), drawn_shares[:, number]),
        }
        for number in range(RELIABILITY_BINS)
        if (weights := np.where(joined[bins] == number, negatives + positives, 0)).any()
    ]
    return report


def _join_bins(
    bins: Int64[np.ndarray, "bins"],
    negatives: Int64[np.ndarray, "bins"],
    positives: Int64[np.ndarray, "bins"],
    least_cell: int,
) -> Int64[np.ndarray, "10"]:
    """Join neighbouring reliability bins until no class has a small number of rows in a joint bin.

    Returns:
        For each reliability bin, the first bin of its joint bin.
    """
    rows = np.stack([np.bincount(bins, weights=side, minlength=RELIABILITY_BINS) for side in (negatives, positives)])
    joined, first = np.arange(RELIABILITY_BINS), 0
    for number in range(RELIABILITY_BINS):
        joined[number] = first
        inside, above = rows[:, first : number + 1].sum(axis=1), rows[:, number + 1 :].sum(axis=1)
        if not is_small([*inside, *above], least_cell):
            first = number + 1
    return joined


def _shares(
    negatives: Int64[np.ndarray, "*draws bins"],
    positives: Int64[np.ndarray, "*draws bins"],
    inside: Float64[np.ndarray, "bins 10"],
) -> Float64[np.ndarray, "*draws 10"]:
    with np.errstate(invalid="ignore"):
        shares: np.ndarray = (positives @ inside) / ((negatives + positives) @ inside)
    return shares


def _counts(
    tally: Tally,
) -> tuple[Float64[np.ndarray, "bins"], Int64[np.ndarray, "bins"], Int64[np.ndarray, "bins"]]:
    """Return the probabilities that occur, and the numbers of negatives and positives with each probability."""
    total = tally.total()
    occupied = (total.negatives + total.positives)[0] > 0
    return total.probabilities[occupied], total.negatives[0, occupied], total.positives[0, occupied]


def _chunks(count: int, largest: int) -> list[int]:
    return [min(largest, count - start) for start in range(0, count, largest)]


def _interval(value: float, draws: Float64[np.ndarray, "draws"]) -> Interval:
    if np.isnan(value):
        return None
    return [value, *np.nanpercentile(draws, LEVELS).tolist()]


def _interval_of_error(gaps: Float64[np.ndarray, "10"], noise: Float64[np.ndarray, "draws 10"]) -> Interval:
    error = float(np.abs(gaps).sum())

    def percentile(multiple: float, level: float) -> float:
        """Return a percentile of the draws' errors if the model has this multiple of the rows' contributions."""
        return float(np.percentile(np.abs(multiple * gaps + noise).sum(axis=1), level))

    low = _first(lambda multiple: percentile(multiple, LEVELS[1]) >= error, 1.0)
    top = 1.0
    while error and percentile(top, LEVELS[0]) <= error:
        top *= 2
    high = _first(lambda multiple: percentile(multiple, LEVELS[0]) > error, top)
    # Chance may add so much to the error of a calibrated model that no multiple is compatible with the error. If the
    # error is 0, only the draws' errors show its possible size.
    return [error, min(low * error, error), max(high * error, error) if error else percentile(0.0, LEVELS[1])]


def _first(condition: Callable[[float], bool], top: float) -> float:
    """Find by bisection the smallest number between 0 and ``top`` from which a condition is met."""
    if condition(0.0):
        return 0.0
    low, high = 0.0, top
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if condition(middle) else (middle, high)
    return high
