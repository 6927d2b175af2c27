"""Rules for small cells: counts of rows that are too small to leave a site, and groups of rows with a common score.

A cell is a number of rows. It may leave a site if it is 0 or at least the site's least cell, a number that the site's
owner sets. A 0 is allowed, since it describes no row, and a site with rows of a single class could not take part
otherwise.

Scores are put into groups of neighbours, each with at least as many rows as the least cell (J. Domingo-Ferrer and
J. M. Mateo-Sanz, "Practical data-oriented microaggregation for statistical disclosure control", IEEE TKDE 14, 2002).
The groups depend on the scores alone. A server that asks again with other bins therefore learns nothing new.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32, Int64
from numpy.typing import ArrayLike
from scipy.special import ndtri

LEAST_CELL = 5
"""The default least cell of a site, and the least cell of the metrics of single sites in result.json."""


def is_small(counts: ArrayLike, least_cell: int) -> bool:
    """Return whether any count is above 0 and below the least cell.

    Args:
        counts: Numbers of rows.
        least_cell: The least cell.

    Example:
        >>> is_small([0, 12, 3], least_cell=5), is_small([0, 12, 5], least_cell=5)
        (True, False)
    """
    count = np.asarray(counts)
    return bool(((count > 0) & (count < least_cell)).any())


def suppress(counts: Int64[np.ndarray, "groups cells"], least_cell: int) -> Bool[np.ndarray, "groups"]:
    """Choose the groups of rows whose counts may not leave a site that reveals the totals of all groups.

    A group is hidden if one of its cells is small. The totals minus the visible groups reveal the hidden groups
    together, so the smallest further groups are hidden until at least two are hidden, no sum of theirs is small, and
    each of them could have at least as many rows as the least cell if all others had one.

    Args:
        counts: The numbers of rows of each group, such as its negatives and its positives.
        least_cell: The least cell.

    Returns:
        Whether each group is hidden. A group without rows stays visible.

    Example:
        >>> suppress(np.array([[40, 30], [30, 20], [9, 2]]), least_cell=5).tolist()
        [False, True, True]
    """
    hidden = np.array([is_small(row, least_cell) for row in counts], dtype=bool)
    sizes = counts.sum(axis=1)
    while hidden.any():
        total, others = counts[hidden].sum(axis=0), hidden.sum() - 1
        if others and not is_small(total, least_cell) and total.sum() - others >= least_cell:
            break
        candidates = np.flatnonzero(~hidden & (sizes > 0))
        if not len(candidates):
            break
        hidden[candidates[sizes[candidates].argmin()]] = True
    return hidden


def widen_gaps(present: Int64[np.ndarray, "c"], rows: int, least_cell: int) -> Int64[np.ndarray, "c"]:
    """Return counts of present cells, lowered so a column has no missing cells or at least as many as the least cell.

    Args:
        present: For each column of a table, the number of cells that are not missing.
        rows: The number of rows.
        least_cell: The least cell.
    """
    missing = rows - present
    return rows - np.where(missing > 0, np.maximum(missing, least_cell), 0)


def hide_rare(cells: Float64[np.ndarray, "n"], least_cell: int) -> Float64[np.ndarray, "n"]:
    """Return a column's cells. If fewer than the least cell differ from the most common value, all become this value.

    Otherwise the mean of a column of zeros and a single 1 would reveal the number of ones.

    Args:
        cells: The column, without missing cells.
        least_cell: The least cell.
    """
    values, counts = np.unique(cells, return_counts=True)
    rare = len(cells) - int(counts.max())
    return np.full_like(cells, values[counts.argmax()]) if is_small([rare], least_cell) else cells


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of rows with neighbouring scores.

    Attributes:
        sizes: The number of rows of each group.
        centres: The mean score of each group. If at least half of the group's rows have the same score, this score.
        spreads: The standard deviation of each group's scores. 0 if half of the rows have the same score.
    """

    sizes: Int64[np.ndarray, "g"]
    centres: Float64[np.ndarray, "g"]
    spreads: Float64[np.ndarray, "g"]

    @classmethod
    def of(cls, scores: Float64[np.ndarray, "n"], least_cell: int) -> "Groups":
        """Group the scores of rows.

        Args:
            scores: The scores of rows of one class. Empty, or at least as many as the least cell.
            least_cell: The least cell.
        """
        ordered, count = np.sort(scores), len(scores) // least_cell
        if not count:
            assert not len(scores)
            return cls(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
        ends = np.arange(count + 1) * len(ordered) // count
        starts, sizes = ends[:-1], np.diff(ends)
        centres = np.add.reduceat(ordered, starts) / sizes
        spreads = np.sqrt(np.add.reduceat((ordered - np.repeat(centres, sizes)) ** 2, starts) / sizes)
        # The mean of a group with two distinct scores would reveal the number of rows with each score.
        for median in (starts + sizes // 2, starts + (sizes - 1) // 2):
            first = np.maximum(np.searchsorted(ordered, ordered[median], "left"), starts)
            last = np.minimum(np.searchsorted(ordered, ordered[median], "right"), ends[1:])
            common = 2 * (last - first) >= sizes
            centres, spreads = np.where(common, ordered[median], centres), np.where(common, 0.0, spreads)
        return cls(sizes, centres, spreads)

    def at(
        self, binned: Int64[np.ndarray, "g"], bins: int
    ) -> tuple[Int32[np.ndarray, "bins"], Float32[np.ndarray, "bins"]]:
        """Return the number of rows of the groups in each bin, and the standard deviation of these rows' scores.

        Args:
            binned: The bin of each group.
            bins: The number of bins.
        """

        def total(values: Float64[np.ndarray, "g"]) -> Float64[np.ndarray, "bins"]:
            return np.bincount(binned, weights=values, minlength=bins)

        rows = total(self.sizes.astype(np.float64))
        means = total(self.sizes * self.centres) / np.maximum(rows, 1)
        between = (self.centres - means[binned]) ** 2
        variances = total(self.sizes * (self.spreads**2 + between)) / np.maximum(rows, 1)
        return rows.astype(np.int32), np.sqrt(variances).astype(np.float32)

    def spread(self) -> Float64[np.ndarray, "n"]:
        """Return a score for each row that has the groups' sizes, means and deviations.

        The scores of a group are evenly spaced, or normally distributed if there is only one group. Without the spread,
        the scores of a class would vary too little, and the AUC would be too large.
        """
        starts = np.cumsum(self.sizes) - self.sizes
        levels = (np.arange(self.sizes.sum()) - np.repeat(starts, self.sizes) + 0.5) / np.repeat(self.sizes, self.sizes)
        if len(self.sizes) == 1 and len(levels) > 1:
            standard = ndtri(levels)
            standard /= standard.std()
        else:
            deviations = np.sqrt(np.maximum(self.sizes.astype(np.float64) ** 2 - 1, 1) / 12) / self.sizes
            standard = (levels - 0.5) / np.repeat(deviations, self.sizes)
        scores = np.repeat(self.centres, self.sizes) + standard * np.repeat(self.spreads, self.sizes)
        largest = float(np.finfo(np.float32).max)
        clipped: np.ndarray = scores.clip(-largest, largest)
        return clipped
