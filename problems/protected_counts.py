"""Counts of a site's rows that reveal no small cell: suppressed cells, and groups of rows with neighbouring values.

Both depend on the rows and the least cell alone, never on a request. Two requests therefore cannot be subtracted to
reveal a smaller cell than each of them.
"""

import math

import numpy as np
from jaxtyping import Bool, Float64, Int64

_MOST_GROUPS = 4096
"""The largest number of groups of a column."""


def suppress(counts: Int64[np.ndarray, "cells"], least_cell: int) -> Bool[np.ndarray, "cells"]:
    """Return which cells of a partition of rows must be hidden, if the number of all rows is known.

    Besides each small cell, further cells are hidden (the smallest first), until at least two are hidden, and each of
    them could have at least as many rows as the least cell if all others had one. The difference of the visible cells
    from all rows then reveals none of them.

    Args:
        counts: The number of rows of each cell. Their sum is 0 or at least the least cell.
        least_cell: The least cell.

    Example:
        >>> suppress(np.array([40, 2, 12, 0]), least_cell=5).tolist()
        [False, True, True, False]
    """
    hidden: np.ndarray = (counts > 0) & (counts < least_cell)
    if not hidden.any():
        return hidden
    for index in np.argsort(counts, kind="stable"):
        if hidden.sum() >= 2 and counts[hidden].sum() - (hidden.sum() - 1) >= least_cell:
            break
        hidden[index] |= counts[index] > 0
    return hidden


def group(cells: Float64[np.ndarray, "n"], least_cell: int) -> tuple[Float64[np.ndarray, "g"], Int64[np.ndarray, "g"]]:
    """Divide a column's cells into groups of neighbouring values, each with at least as many cells as the least cell.

    An interval from a multiple of a power of 2 to the next is halved as long as both halves have enough cells. If a
    half has some, but too few, its cells count as the nearest cell of the other half. So the number of cells below a
    border that is such a multiple is exact, unless too few cells lie on one side of it.

    Args:
        cells: The column, without missing cells. Their number is 0 or at least the least cell.
        least_cell: The least cell. 1: each value is a group.

    Returns:
        A number in each group, ascending: the common value of its cells, or the middle of its interval; and the number
        of its cells.
    """
    if least_cell <= 1 or not len(cells):
        values, counts = np.unique(cells, return_counts=True)
        return values, counts.astype(np.int64)
    ordered = np.sort(cells)
    smallest = max(2 * least_cell, len(cells) // _MOST_GROUPS)
    points, sizes = list[float](), list[int]()
    parts = [(0, len(ordered))]
    while parts:
        start, end = parts.pop()
        low, high = float(ordered[start]), float(ordered[end - 1])
        if low == high:
            points.append(low)
            sizes.append(end - start)
            continue
        left, right = _interval(low, high)
        middle = left / 2 + right / 2
        if end - start < smallest:
            points.append(middle)
            sizes.append(end - start)
            continue
        cut = start + int(np.searchsorted(ordered[start:end], middle))
        if cut - start < least_cell:
            ordered[start:cut] = ordered[cut]
            parts.append((start, end))
        elif end - cut < least_cell:
            ordered[cut:end] = ordered[cut - 1]
            parts.append((start, end))
        else:
            parts += [(cut, end), (start, cut)]
    return np.array(points), np.array(sizes, dtype=np.int64)


def _interval(low: float, high: float) -> tuple[float, float]:
    """Return the smallest interval between two neighbouring multiples of a power of 2 that contains two numbers."""
    if low < 0 <= high:
        bound = 2.0 ** (math.frexp(max(-low, high))[1])
        return -bound, bound
    width = 2.0 ** (math.frexp(high - low)[1] - 1)
    while math.floor(low / width) != math.floor(high / width):
        width *= 2
    left = math.floor(low / width) * width
    return left, left + width
