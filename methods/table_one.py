"""The sums of a description of columns over all sites, and the borders of bins that the server asks for."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from methods.cohort import Columns
from payloads.description import SiteQuantiles
from payloads.digit_sums import DIGITS, from_digits
from payloads.record import Payload
from problems.data.quantiles import GROUPS

_PIECES = 2 * GROUPS
"""A bin is divided if it has two of so many equal parts of a column's cells."""
_POWERS, _NARROW = range(-20, 65), 256


@dataclass(frozen=True, eq=False)
class Part:
    """The sums of one site, of all sites, or of all sites but one.

    Attributes:
        totals: The fields of `Totals`.
        offsets, squares: For each number, the exact sums of differences from the origin, and of their squares.
    """

    totals: dict[str, Int64[np.ndarray, "_"]]
    offsets: tuple[Fraction, ...]
    squares: tuple[Fraction, ...]

    @property
    def rows(self) -> Int64[np.ndarray, "3"]:
        """The rows by class."""
        return self.totals["rows"]

    def moments(self, index: int) -> tuple[float, float] | None:
        """Return mean and standard deviation (n - 1) of a number; None for fewer than two cells."""
        cells = int(self.totals["cells"][index])
        if cells < 2:
            return None
        (total,) = from_digits(self.totals["sums"][DIGITS * index : DIGITS * (index + 1)])
        variance = (self.squares[index] - self.offsets[index] ** 2 / cells) / (cells - 1)
        return float(total / cells), float(max(variance, Fraction(0))) ** 0.5

    def without(self, other: "Part") -> "Part":
        """Return the sums without another part's."""
        totals = {name: values - other.totals[name] for name, values in self.totals.items()}
        offsets = tuple(mine - theirs for mine, theirs in zip(self.offsets, other.offsets, strict=True))
        squares = tuple(mine - theirs for mine, theirs in zip(self.squares, other.squares, strict=True))
        return Part(totals, offsets, squares)


@dataclass(eq=False)
class Pool:
    """The sums of all sites.

    Attributes:
        columns: The columns.
        totals: The replies to `TOTALS`: one for each site, or with secure sums a single reply with the sums.
        summed: Whether the server sees sums only.
        borders: The borders of the newest counts, infinite after the last.
        counts: The newest counts of numbers over all sites, by class and bin.
        quantiles: Each site's quantiles; empty with secure sums.
        deviation: The standard deviation of the noise in each count. 0: no noise.
        grouped: The sum of the least cells of the sites that count groups of rows. 0: all counts are exact.
    """

    columns: Columns
    totals: list[dict[str, Int64[np.ndarray, "_"]]]
    summed: bool
    borders: Float64[np.ndarray, "c b"] = field(default_factory=lambda: np.zeros((0, 0)))
    counts: Int64[np.ndarray, "c 3 bins"] = field(default_factory=lambda: np.zeros((0, 3, 1), np.int64))
    quantiles: Sequence[SiteQuantiles] = ()
    parts: list[Part] = field(default_factory=list)
    deviation: float = 0.0
    grouped: int = 0

    @classmethod
    def of(cls, columns: Columns, replies: Sequence[Payload], *, summed: bool) -> "Pool":
        """Return the pool of the replies to `TOTALS`."""
        return cls(columns, _arrays(replies, summed=summed), summed)

    def means(self) -> Float64[np.ndarray, "c"]:
        """Return the mean of each number, 0 without cells."""
        cells = _add(self.totals)["cells"].tolist()
        sums = from_digits(_add(self.totals)["sums"])
        return np.array([float(total / max(count, 1)) for total, count in zip(sums, cells, strict=True)])

    def add_bins(
        self, borders: Float64[np.ndarray, "c b"], origins: Float64[np.ndarray, "o"], replies: Sequence[Payload]
    ) -> None:
        """Store the replies to an exchange of `BINS`.

        Args:
            borders: The borders of the question.
            origins: The origins of the question. Empty: the replies have no squares.
            replies: The replies.
        """
        arrays = _arrays(replies, summed=self.summed)
        self.borders = borders
        self.counts = _add(arrays)["counts"].reshape(len(borders), 3, -1)
        if len(origins) or not self.parts:
            self.parts = [
                Part(
                    totals,
                    tuple(from_digits(sums["offsets"])),
                    tuple(from_digits(sums["squares"])),
                )
                for totals, sums in zip(self.totals, arrays, strict=True)
            ]

    @property
    def all(self) -> Part:
        """The sums over all sites."""
        offsets, squares = (
            tuple(map(sum, zip(*(getattr(part, name) for part in self.parts), strict=True)))
            for name in ("offsets", "squares")
        )
        return Part(_add(self.totals), offsets, squares)  # type: ignore[arg-type]

    def counts_of(self, index: int) -> Int64[np.ndarray, "bins"]:
        """Return the counts of a number by bin, over all classes."""
        total: np.ndarray = self.counts[index].sum(axis=0)
        return total

    def levels(self, index: int, levels: Float64[np.ndarray, "q"]) -> Float64[np.ndarray, "q"]:
        """Return quantiles of a number over all sites; nan without cells."""
        return find_quantiles(self.borders[index], self.counts_of(index), levels, linear=self.deviation > 0)


def _arrays(replies: Sequence[Any], *, summed: bool) -> list[dict[str, Int64[np.ndarray, "_"]]]:
    arrays = [{name: values.astype(np.int64) for name, values in reply.arrays().items()} for reply in replies]
    return [_add(arrays)] if summed else arrays


def _add(arrays: Sequence[dict[str, Int64[np.ndarray, "_"]]]) -> dict[str, Int64[np.ndarray, "_"]]:
    return {name: np.sum([one[name] for one in arrays], axis=0) for name in arrays[0]}


def first_borders(columns: int) -> Float64[np.ndarray, "c b"]:
    """Return the borders of the first question: 0, and powers of 2 with both signs."""
    powers = 2.0 ** np.array(_POWERS)
    return np.tile(np.concatenate([-powers[::-1], [0.0], powers]), (columns, 1))


def is_fine(borders: Float64[np.ndarray, "c b"], counts: Int64[np.ndarray, "c 3 bins"]) -> bool:
    """Return whether each bin has at most 1/64 of its column's cells, or is narrow: nearly equal cells."""
    for row, by_class in zip(borders, counts, strict=True):
        cells = by_class.sum(axis=0)
        finite, heavy = row[np.isfinite(row)], cells * GROUPS > cells.sum()
        low, high = find_quantiles(row, cells, np.array([0.05, 0.95]))
        widths = np.concatenate([[np.inf], np.diff(finite), np.full(len(cells) - len(finite), np.inf)])
        if (heavy & (widths * _NARROW > max(high - low, abs(low) / _NARROW))).any():
            return False
    return True


def refine(
    borders: Float64[np.ndarray, "c b"], counts: Int64[np.ndarray, "c 3 bins"], fewest: float = 0.0
) -> Float64[np.ndarray, "c finer"]:
    """Return finer borders for bins with many cells, and none between bins with few.

    All borders are multiples of powers of 2, at which sites count exactly.

    Args:
        borders: The borders of the counts.
        counts: The counts by class and bin.
        fewest: The smallest useful number of cells in a bin.
    """
    refined = [
        _refine(row[np.isfinite(row)], cells.sum(axis=0).tolist(), fewest)
        for row, cells in zip(borders, counts, strict=True)
    ]
    padded = np.full((len(refined), max(map(len, refined), default=0)), np.inf)
    for row, finite in zip(padded, refined, strict=True):
        row[: len(finite)] = finite
    return padded


def _refine(borders: Float64[np.ndarray, "b"], counts: list[int], fewest: float) -> Float64[np.ndarray, "_"]:
    total, waiting, chosen = sum(counts), 0, list[float]()
    most = _PIECES if not fewest else min(_PIECES, max(int(total / fewest), 2))
    for low, high, count in zip([-np.inf, *borders], [*borders, np.inf], counts, strict=False):
        pieces = count * most // max(total, 1)
        step = 0.0
        if pieces >= 2 and np.isfinite(high - low):
            step = 2.0 ** np.floor(np.log2((high - low) / pieces))
        if step and low + step > low and high - step < high:
            chosen += [low + step * number for number in range(round((high - low) / step) + 1)]
            waiting = 0
            continue
        waiting += count
        if waiting * 2 * most >= total and np.isfinite(high):
            chosen.append(high)
            waiting = 0
    return np.unique(np.array(chosen or borders[:1]))


def find_quantiles(
    borders: Float64[np.ndarray, "b"],
    counts: Int64[np.ndarray, "bins"],
    levels: Float64[np.ndarray, "q"],
    *,
    linear: bool = False,
) -> Float64[np.ndarray, "q"]:
    """Return quantiles of counted cells: linear within a bin, or the lower border of a bin with many equal cells.

    Args:
        borders: The borders of the bins.
        counts: The number of cells in each bin.
        levels: The levels of the quantiles.
        linear: Whether the cells of a wide bin with many cells are not equal.
    """
    finite, total = borders[np.isfinite(borders)], int(counts.sum())
    if not total or not len(finite):
        return np.full(len(levels), np.nan)
    below = np.concatenate([[0], np.cumsum(counts)])
    found = []
    for level in levels:
        index = min(int(np.searchsorted(below[1:], level * total)), len(finite))
        if index in (0, len(finite)):
            found.append(finite[0] if index == 0 else finite[-1])
            continue
        low, high = finite[index - 1], finite[index]
        share = (level * total - below[index]) / max(int(counts[index]), 1)
        equal = counts[index] * GROUPS > total and not (linear and (high - low) * _NARROW > finite[-1] - finite[0])
        found.append(low if equal else low + (high - low) * share)
    return np.array(found)


def merge_bins(
    borders: Float64[np.ndarray, "b"], counts: Int64[np.ndarray, "3 bins"], bins: int
) -> tuple[Float64[np.ndarray, "_"], Int64[np.ndarray, "3 _"]]:
    """Merge fine bins into nearly equal bins.

    Args:
        borders: The fine borders.
        counts: The counts by class and fine bin.
        bins: The number of bins. Below 2: a single bin.

    Returns:
        The chosen borders, and the counts by class and merged bin.
    """
    finite = borders[np.isfinite(borders)]
    below = np.cumsum(counts.sum(axis=0))[: len(finite)]
    total = int(counts.sum())
    inner = np.flatnonzero((below > 0) & (below < total))
    if not len(inner) or bins < 2:
        return finite[:0], counts.sum(axis=1, keepdims=True)
    wanted = np.arange(1, bins) / bins * total
    chosen = np.unique(inner[np.abs(below[inner] - wanted[:, None]).argmin(axis=1)])
    chosen = chosen[np.append(True, np.diff(below[chosen]) > 0)]
    ends = [0, *(chosen + 1).tolist(), counts.shape[1]]
    merged = np.stack([counts[:, start:end].sum(axis=1) for start, end in pairwise(ends)], axis=1)
    return finite[chosen], merged
