"""Monotone bins: neighbouring bins are merged until the share of positives only rises, or only falls, with the column.

Source: M. Ayer, H. D. Brunk, G. M. Ewing, W. T. Reid and E. Silverman, "An empirical distribution function for sampling
with incomplete information", Annals of Mathematical Statistics 26 (1955): pooling adjacent violators gives the maximum
likelihood of the counts under the order. The weight of evidence rises with the share of positives.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64
from numpy.typing import ArrayLike
from scipy.special import xlogy


def merge_borders(
    borders: Sequence[float], negatives: ArrayLike, positives: ArrayLike, min_rows: int = 1, rising: bool | None = None
) -> tuple[float, ...]:
    """Return the borders that remain if bins are merged until their weight of evidence is monotone in the column.

    Args:
        borders: The borders between the bins, ascending.
        negatives: The number of negative rows in each bin; there is one bin more than borders.
        positives: The number of positive rows in each bin.
        min_rows: The smallest number of rows of each class in a merged bin, at least 1, unless one bin remains.
        rising: Whether the share of positives shall rise with the column. None: the direction with the larger
            likelihood, and rising if both are equal.

    Raises:
        ValueError: The numbers of borders and counts do not fit, or a count is below 0.

    Example:
        >>> merge_borders([20, 30, 40], negatives=[50, 60, 40, 90], positives=[20, 20, 15, 10])
        (20.0, 40.0)
    """
    counts = np.stack((np.asarray(negatives, np.float64), np.asarray(positives, np.float64)))  # (2, bins)
    if counts.shape != (2, len(borders) + 1) or (counts < 0).any():
        raise ValueError(f"counts of shape {counts.shape} for {len(borders)} borders, expected counts >= 0 of each bin")
    directions = (True, False) if rising is None else (rising,)
    starts = max((_pool(counts, up) for up in directions), key=lambda found: _likelihood(counts, found))
    starts = _enlarge(counts, starts, min_rows)
    return tuple(float(borders[start - 1]) for start in starts[1:])


def _pool(counts: Float64[np.ndarray, "2 bins"], rising: bool) -> list[int]:
    """Return the first bins of the groups that pooling adjacent violators makes. Equal shares become one group."""
    groups: list[tuple[int, float, float]] = []  # the first bin, negatives and positives
    for index, (negative, positive) in enumerate(counts.T.tolist()):
        start = index
        while groups and not _is_ordered(groups[-1][1:], (negative, positive), rising):
            start, *before = groups.pop()
            negative, positive = negative + before[0], positive + before[1]
        groups.append((start, negative, positive))
    return [start for start, _, _ in groups]


def _is_ordered(left: Sequence[float], right: Sequence[float], rising: bool) -> bool:
    """Return whether the share of positives of the right group is above the left group's, or below it."""
    difference = right[1] * left[0] - left[1] * right[0]
    return difference > 0 if rising else difference < 0


def _likelihood(counts: Float64[np.ndarray, "2 bins"], starts: Sequence[int]) -> float:
    """Return the log likelihood of the counts with one share of positives in each group."""
    grouped = np.add.reduceat(counts, list(starts), axis=1)
    rows = np.maximum(grouped.sum(axis=0), 1.0)
    return float(xlogy(grouped, grouped / rows).sum())


def _enlarge(counts: Float64[np.ndarray, "2 bins"], starts: Sequence[int], min_rows: int) -> list[int]:
    """Merge groups with too few rows of a class with the neighbour whose share of positives is nearer."""
    edges = list(starts)
    while len(edges) > 1:
        grouped = np.add.reduceat(counts, edges, axis=1)
        small = np.flatnonzero((grouped < min_rows).any(axis=0))
        if not len(small):
            break
        index = int(small[0])
        shares = grouped[1] / np.maximum(grouped.sum(axis=0), 1.0)
        gaps = [
            abs(shares[index] - shares[other]) if 0 <= other < len(edges) else np.inf
            for other in (index - 1, index + 1)
        ]
        del edges[index if gaps[0] <= gaps[1] else index + 1]
    return edges
