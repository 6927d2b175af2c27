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


def count_entries(
    entries: Int64[np.ndarray, "n"], bins: Int64[np.ndarray, "n"], cells: Int64[np.ndarray, "grid 2 bins"]
) -> Int64[np.ndarray, "grid bins"] | None:
    """Count rows by the grid time of their entry and their score's bin. None: all rows enter at grid time 0.

    Args:
        entries: The grid times of the rows' entries.
        bins: The rows' bins.
        cells: The counts of the rows by exit.
    """
    if not entries.any():
        return None
    counts = np.zeros(cells[:, 0].shape, dtype=np.int64)
    np.add.at(counts, (entries, bins), 1)
    return counts


def derive_rows(
    exits: Int64[np.ndarray, "n"],
    labels: Int[np.ndarray, "n"],
    scores: Real[np.ndarray, "n"],
    entries: Int64[np.ndarray, "n"],
) -> tuple[float, Float64[np.ndarray, "n"]]:
    """Return Harrell's concordance of rows, and its derivative with respect to each row's weight.

    Args:
        exits: The rows' grid times.
        labels: 1 for rows with an event, else 0.
        scores: The rows' scores.
        entries: The grid times of the rows' entries.
    """
    cells, bins = bin_rows(exits, labels, scores, int(exits.max(initial=-1)) + 1)
    value, derivative, before = derive_harrell(cells, count_entries(entries, bins, cells))
    return value, derivative[exits, labels.astype(np.int64), bins] - np.where(entries > 0, before[entries, bins], 0.0)


def compare_concordances(
    exits: Int64[np.ndarray, "n"],
    labels: Int[np.ndarray, "n"],
    scores: Real[np.ndarray, "n"],
    reference: Real[np.ndarray, "n"],
    entries: Int64[np.ndarray, "n"] | None = None,
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
        entries: The grid times of the rows' entries. None: all at grid time 0.

    Returns:
        The difference. It has no interval with fewer than `FEWEST_EVENTS` events.

    Raises:
        ValueError: No two rows are comparable.
    """
    events, starts = int((labels == 1).sum()), np.zeros_like(exits) if entries is None else entries
    (value, derivative), (other, others) = (derive_rows(exits, labels, each, starts) for each in (scores, reference))
    gap = value - other
    if not np.isfinite(gap):
        raise ValueError("a concordance needs comparable rows")
    if events < FEWEST_EVENTS:
        return PairedDifference(gap, None, None)
    variance = float(((derivative - others) ** 2).sum()) * events / (events - 1)
    reach = float(stdtrit(events - 1, 0.975)) * float(np.sqrt(variance))
    return PairedDifference(gap, gap - reach, gap + reach)
