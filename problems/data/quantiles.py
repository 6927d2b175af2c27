"""Quantiles of a column over all sites, from sketches that do not reveal single rows.

A sketch is a site's list of up to 63 quantiles. They divide the site's sorted cells into groups of nearly equal size,
each with at least 10 cells.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float64, Int64

FEWEST_ROWS = 10
"""The smallest number of rows behind a mean or a variance, and between two quantiles: fewer would reveal rows."""
GROUPS = 64
"""The largest number of groups between a site's quantiles; the number of groups between the pooled quantiles."""
LEVELS = np.arange(1, GROUPS) / GROUPS
"""The levels of the pooled quantiles."""

SKEW = 5.0
"""The least ratio of the two distances from the median to the outer quantiles that `has_tails` calls a long tail."""
_FEW_VALUES = 8
"""Columns with at most this number of different quantiles are counts or codes, whose skew is no tail."""


def sketch(cells: Float64[np.ndarray, "n"], count: int | None = None, min_group: int = 1) -> Float64[np.ndarray, "m"]:
    """Return the quantiles of a column that a site reports, ascending.

    They are the borders between up to 64 groups of nearly equal size. Each group has at least 10 cells, so at least 10
    rows lie beyond a quantile and between two quantiles. A border is midway between two cells, so it never equals a
    single row's value.

    Args:
        cells: The cells that are not missing. Fewer than 20 cells have no border.
        count: The number of cells that the site reports, which determines the number of borders. None: all cells.
        min_group: The smallest number of cells in a group. Above 10, borders that are too close together become equal.
    """
    ordered, rows = np.sort(cells), len(cells)
    reported = rows if count is None else count
    below = cuts(reported) * rows // max(reported, 1)
    if min_group > FEWEST_ROWS and len(below):
        groups = rows // min_group
        apart = np.arange(1, groups) * rows // groups
        below = apart[np.abs(below[:, None] - apart).argmin(axis=1)]
    middle: np.ndarray = ordered[below - 1] / 2 + ordered[below] / 2
    return middle


def cuts(count: int) -> Int64[np.ndarray, "m"]:
    """Return, for each border between groups, the number of sorted cells below the border. A border is the median.

    Args:
        count: The number of cells.
    """
    groups = max(1, min(GROUPS, 2 * (count // (2 * FEWEST_ROWS))))
    return np.arange(1, groups) * count // groups


def merge(
    counts: Int64[np.ndarray, "sites"], sketches: Sequence[Float64[np.ndarray, "_"]], levels: Float64[np.ndarray, "q"]
) -> Float64[np.ndarray, "q"]:
    """Return the quantiles of all sites' cells of a column, ascending.

    A site's distribution function is assumed to be linear between its quantiles. The groups at both ends, whose outer
    bounds are unknown, are assumed to be as wide as their neighbours. Sites without a quantile are left out.

    Args:
        counts: The number of each site's cells, which is the site's weight.
        sketches: The quantiles of each site. At least one site has quantiles.
        levels: The levels of the result, ascending, in (0, 1).
    """
    curves = [_curve(int(n), borders) for n, borders in zip(counts, sketches, strict=True) if len(borders)]
    weights = np.array([n for n, borders in zip(counts, sketches, strict=True) if len(borders)], dtype=np.float64)
    knots = np.unique(np.concatenate([xs for xs, _ in curves]))
    left, right = np.zeros_like(knots), np.zeros_like(knots)
    for weight, (xs, heights) in zip(weights / weights.sum(), curves, strict=True):
        # at equal knots the distribution function jumps: take its limits from the left and from the right
        left -= weight * np.interp(-knots, -xs[::-1], -heights[::-1])
        right += weight * np.interp(knots, xs, heights)
    heights = np.maximum.accumulate(np.stack([left, right], axis=1).ravel())
    xs = np.repeat(knots, 2)
    # if the function is constant on an interval, the quantile is the middle of the interval, like a median
    low, high = np.interp(-levels, -heights[::-1], xs[::-1]), np.interp(levels, heights, xs)
    return np.maximum.accumulate(low / 2 + high / 2)


def has_tails(
    counts: Int64[np.ndarray, "c"], quantiles: Float64[np.ndarray, "c q"], deviations: Float64[np.ndarray, "c"]
) -> Bool[np.ndarray, "c"]:
    """Return whether each column has a long tail, in which few cells determine mean and deviation.

    A column has a long tail if its deviation exceeds the range of its quantiles, such as with codes like 9999, or if an
    outer quantile is `SKEW` times as far from the median as the other, such as for amounts of money. Columns with fewer
    than 640 cells, and constant columns, have none.

    Args:
        counts: The numbers of cells.
        quantiles: The quantiles at `LEVELS`; equal numbers if they are unknown.
        deviations: The standard deviations.
    """
    low, median, high = quantiles[:, 0], quantiles[:, GROUPS // 2 - 1], quantiles[:, -1]
    near, far = np.sort([median - low, high - median], axis=0)
    values = 1 + (np.diff(quantiles) > 0).sum(axis=1)
    skewed = (far > SKEW * near) & (values > _FEW_VALUES)
    tailed: np.ndarray = (low < high) & (skewed | (deviations > high - low)) & (counts >= GROUPS * FEWEST_ROWS)
    return tailed


def choose_borders(quantiles: Float64[np.ndarray, "q"], bins: int) -> Float64[np.ndarray, "b"]:
    """Return the borders between bins of nearly equal size: for each level k / bins, the nearest quantile.

    Args:
        quantiles: The quantiles at the levels k / (q + 1), ascending.
        bins: The number of bins. Equal quantiles lead to fewer bins.

    Returns:
        Different borders, ascending. Each is below the last quantile, since no cell may lie above the last quantile.
    """
    indices = np.rint(np.arange(1, bins) / bins * (len(quantiles) + 1)).astype(np.int64) - 1
    inner: np.ndarray = quantiles[quantiles < quantiles[-1]]
    if not len(inner):
        return inner
    chosen = quantiles[np.clip(indices, 0, len(quantiles) - 1)]
    return np.unique(np.minimum(chosen, inner[-1]))


def _curve(
    count: int, borders: Float64[np.ndarray, "m"]
) -> tuple[Float64[np.ndarray, "m+2"], Float64[np.ndarray, "m+2"]]:
    """Return the knots of a site's distribution function, and the function's values at the knots."""
    first, last = (borders[1] - borders[0], borders[-1] - borders[-2]) if len(borders) > 1 else (0.0, 0.0)
    knots = np.concatenate([[borders[0] - first], borders, [borders[-1] + last]])
    return knots, np.concatenate([[0.0], cuts(count) / count, [1.0]])
