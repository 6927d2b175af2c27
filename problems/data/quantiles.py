"""Quantiles of a column, told in a form that gives no single row away, and put together over sites."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64

FEWEST_ROWS = 10
"""Means and variances over fewer rows reveal single rows, and so do quantiles with fewer rows between them."""
GROUPS = 64
"""At most so many groups of equal size are told apart by a site's quantiles, and by the agreed ones."""
LEVELS = np.arange(1, GROUPS) / GROUPS
"""Of the agreed quantiles."""


def sketch(cells: Float64[np.ndarray, "n"], count: int | None = None, least: int = 1) -> Float64[np.ndarray, "m"]:
    """Return the quantiles of a column that a site tells, ascending: the borders between groups of nearly equal size.

    Each group has 10 cells or more, so that no quantile is nearer than 10 rows to either end or to another one, and
    there are 64 groups at most. A border lies midway between two cells: that of a single row is not told.

    Args:
        cells: those that are there; with fewer than 20 there is no border.
        count: The number of cells that the site reports, which sets the number of borders. None: all of them.
        least: The least number of cells in a group. Above 10, borders too near to another one become equal to it.
    """
    ordered, rows = np.sort(cells), len(cells)
    reported = rows if count is None else count
    below = cuts(reported) * rows // max(reported, 1)
    if least > FEWEST_ROWS and len(below):
        groups = rows // least
        apart = np.arange(1, groups) * rows // groups
        below = apart[np.abs(below[:, None] - apart).argmin(axis=1)]
    middle: np.ndarray = ordered[below - 1] / 2 + ordered[below] / 2
    return middle


def cuts(count: int) -> Int64[np.ndarray, "m"]:
    """Return how many of the sorted cells are below each border between groups; one of the borders is the median's.

    Args:
        count: how many cells there are.
    """
    groups = max(1, min(GROUPS, 2 * (count // (2 * FEWEST_ROWS))))
    return np.arange(1, groups) * count // groups


def merge(
    counts: Int64[np.ndarray, "sites"], sketches: Sequence[Float64[np.ndarray, "_"]], levels: Float64[np.ndarray, "q"]
) -> Float64[np.ndarray, "q"]:
    """Return quantiles of the mixture of all sites' cells of a column, ascending.

    A site's distribution function is taken as linear between its quantiles; the groups at both ends, whose ends are not
    known, are taken to be as wide as their neighbours. Cells of a site without a quantile are left out.

    Args:
        counts: of the sites' cells, their weights.
        sketches: the sites' quantiles, of one site at least.
        levels: ascending, in (0, 1).
    """
    curves = [_curve(int(n), borders) for n, borders in zip(counts, sketches, strict=True) if len(borders)]
    weights = np.array([n for n, borders in zip(counts, sketches, strict=True) if len(borders)], dtype=np.float64)
    knots = np.unique(np.concatenate([places for places, _ in curves]))
    left, right = np.zeros_like(knots), np.zeros_like(knots)
    for weight, (places, heights) in zip(weights / weights.sum(), curves, strict=True):
        # where places coincide, the function jumps: its values from the left and from the right
        left -= weight * np.interp(-knots, -places[::-1], -heights[::-1])
        right += weight * np.interp(knots, places, heights)
    heights = np.maximum.accumulate(np.stack([left, right], axis=1).ravel())
    places = np.repeat(knots, 2)
    # where the function is constant, the middle of the interval, as of a median
    low, high = np.interp(-levels, -heights[::-1], places[::-1]), np.interp(levels, heights, places)
    return np.maximum.accumulate(low / 2 + high / 2)


def choose_borders(quantiles: Float64[np.ndarray, "q"], bins: int) -> Float64[np.ndarray, "b"]:
    """Return the borders between bins of nearly equal size: of each level k / bins the quantile nearest to it.

    Args:
        quantiles: ascending, of the levels k / (q + 1).
        bins: how many there are, unless quantiles coincide.

    Returns:
        Different borders, ascending, each below the last quantile, beyond which there may be no cell.
    """
    places = np.rint(np.arange(1, bins) / bins * (len(quantiles) + 1)).astype(np.int64) - 1
    inner: np.ndarray = quantiles[quantiles < quantiles[-1]]
    if not len(inner):
        return inner
    chosen = quantiles[np.clip(places, 0, len(quantiles) - 1)]
    return np.unique(np.minimum(chosen, inner[-1]))


def _curve(
    count: int, borders: Float64[np.ndarray, "m"]
) -> tuple[Float64[np.ndarray, "m+2"], Float64[np.ndarray, "m+2"]]:
    """The knots of a site's distribution function, and its values there."""
    first, last = (borders[1] - borders[0], borders[-1] - borders[-2]) if len(borders) > 1 else (0.0, 0.0)
    places = np.concatenate([[borders[0] - first], borders, [borders[-1] + last]])
    return places, np.concatenate([[0.0], cuts(count) / count, [1.0]])
