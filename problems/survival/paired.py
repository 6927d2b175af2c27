"""Rows counted by grid time, event and score, and the difference of two models' concordances on the same rows."""

import numpy as np
from jaxtyping import Float64, Int, Int64, Real
from scipy.special import stdtrit

from problems.delong import PairedDifference
from problems.survival.concordance import FEWEST_EVENTS, derive_harrell

MOST_BINS = 4096


def bin_rows(
    exits: Int64[np.ndarray, "n"], labels: Int[np.ndarray, "n"], scores: Real[np.ndarray, "n"], intervals: int
) -> tuple[Int64[np.ndarray, "{intervals} 2 bins"], Int64[np.ndarray, "n"]]:
    """Count rows by grid time, event and score; return the counts, and the bin of each row.

    Args:
        exits: The rows' grid times.
        labels: 1 for rows with an event, else 0.
        scores: The rows' scores. Each different score is a bin, up to 4,096 bins; else bins have nearly equal numbers
            of rows.
        intervals: The number of grid times.
    """
    values, bins = np.unique(scores, return_inverse=True)
    if len(values) > MOST_BINS:
        edges = np.unique(np.quantile(scores, np.arange(1, MOST_BINS) / MOST_BINS))
        bins = np.searchsorted(edges, scores, "right")
    cells = np.zeros((intervals, 2, int(bins.max(initial=0)) + 1), dtype=np.int64)
    np.add.at(cells, (exits, labels.astype(np.int64), bins), 1)
    return cells, bins


def compare_concordances(
    exits: Int64[np.ndarray, "n"],
    labels: Int[np.ndarray, "n"],
    scores: Real[np.ndarray, "n"],
    reference: Real[np.ndarray, "n"],
) -> PairedDifference:
    """Compare two models' concordances (Harrell's) on the same rows.

    The variance is the infinitesimal jackknife's, like `problems.survival.concordance.harrell_interval`: the sum over
    rows of the squared difference of the two derivatives with respect to the row's weight. With d events it is
    multiplied by d / (d - 1), and the interval uses the quantiles of Student's t with d - 1 degrees of freedom.

    Args:
        exits: The rows' grid times.
        labels: 1 for rows with an event, else 0.
        scores: The first model's scores.
        reference: The second model's scores.

    Returns:
        The difference. It has no interval with fewer than `FEWEST_EVENTS` events.

    Raises:
        ValueError: No two rows are comparable.
    """
    intervals, events = int(exits.max(initial=-1)) + 1, int((labels == 1).sum())
    values, derivatives = list[float](), list[Float64[np.ndarray, "n"]]()
    for each in (scores, reference):
        cells, bins = bin_rows(exits, labels, each, intervals)
        value, derivative = derive_harrell(cells)
        values.append(value)
        derivatives.append(derivative[exits, labels.astype(np.int64), bins])
    gap = values[0] - values[1]
    if not np.isfinite(gap):
        raise ValueError("a concordance needs comparable rows")
    if events < FEWEST_EVENTS:
        return PairedDifference(gap, None, None)
    variance = float(((derivatives[0] - derivatives[1]) ** 2).sum()) * events / (events - 1)
    reach = float(stdtrit(events - 1, 0.975)) * float(np.sqrt(variance))
    return PairedDifference(gap, gap - reach, gap + reach)
