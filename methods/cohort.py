"""A site's rows for a description of columns (`methods.describe`), and the counts of cells that may leave the site.

The negatives and the positives of a site are described like two files: each count by class is 0, at least the least
cell, or hidden. If a class is smaller than the least cell, all rows are of an unknown class.

Counts depend on a fixed grouping of the site's rows (`problems.protected_counts`). A server that asks again with other
borders learns nothing more than the sizes of these groups.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float64, Int8, Int64

from payloads.description import MOST_BORDERS
from payloads.digit_sums import DIGITS
from problems.data import DataError
from problems.data.preprocessing import MARKS, Feature
from problems.data.quantiles import FEWEST_ROWS
from problems.least_cell import hide_rare, is_small
from problems.protected_counts import group

LARGEST_NUMBER, _FEW_VALUES = 2.0**40, 3
# the largest cell and the largest origin: squares of differences over 2^37 rows stay below 2^120


@dataclass(frozen=True)
class Columns:
    """The columns of a table: numbers, and text columns with their levels.

    Attributes:
        inputs: The features, unscaled: one for a column of numbers, one for each level of a text column.
    """

    inputs: tuple[Feature, ...]

    @cached_property
    def numbers(self) -> list[int]:
        """The indices of the c numbers among the inputs."""
        return [index for index, feature in enumerate(self.inputs) if feature.kind not in MARKS]

    @cached_property
    def texts(self) -> dict[str, list[int]]:
        """For each text column, the indices of its levels among the inputs."""
        levels: dict[str, list[int]] = {}
        for index, feature in enumerate(self.inputs):
            if feature.kind in MARKS:
                levels.setdefault(feature.column, []).append(index)
        return levels

    @cached_property
    def parts(self) -> dict[str, slice]:
        """For each text column, its entries in `Totals.marks`: levels, missing cells, texts without a level."""
        begin, slices = 0, {}
        for name, levels in self.texts.items():
            slices[name] = slice(begin, begin + len(levels) + 2)
            begin += len(levels) + 2
        return slices

    def limits(self) -> dict[str, int]:
        """Return the maximum length of each dimension of the records."""
        numbers, texts = len(self.numbers), len(self.texts)
        marks = sum(map(len, self.texts.values())) + 2 * texts
        sizes = {"c": numbers, "g": 3 * numbers, "l": DIGITS * numbers, "s": DIGITS * numbers}
        return {**sizes, "k": marks, "m": 3 * marks, "p": 3 * texts, "h": 3 * numbers * (MOST_BORDERS + 1)}


@dataclass(frozen=True, eq=False)
class Cohort:
    """A site's rows.

    Attributes:
        partition_id: The site's number.
        columns: The columns.
        values: The numbers of the inputs, unscaled; NaN for a missing cell.
        labels: 0 or 1.
        least_cell: The smallest count of rows, except 0, that may leave the site.
    """

    partition_id: int
    columns: Columns
    values: Float64[np.ndarray, "n f"]
    labels: Int8[np.ndarray, "n"]
    least_cell: int = 1

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def fewest(self) -> int:
        """The fewest rows of a site, and the fewest cells of a column, that are described."""
        return max(FEWEST_ROWS, 2 * self.least_cell if self.least_cell > 1 else 0)

    @property
    def is_withheld(self) -> bool:
        """Whether the site has too few rows to describe."""
        return len(self) < self.fewest

    @cached_property
    def classes(self) -> tuple[Bool[np.ndarray, "n"], ...]:
        """The rows of each of `CLASSES`."""
        positive, none = self.labels == 1, np.zeros(len(self), dtype=bool)
        if is_small([positive.sum(), (~positive).sum()], self.least_cell):
            return none, none, ~none
        return ~positive, positive, none

    @cached_property
    def numbers(self) -> list["NumberCells"]:
        """The cells of each column of numbers."""
        return [NumberCells.of(self, index) for index in self.columns.numbers]


@dataclass(frozen=True, eq=False)
class NumberCells:
    """A site's cells of a column of numbers.

    Attributes:
        cells: The cells; of a column with few values, the groups' cells. Empty: too few cells are described.
        is_changed: Whether these cells differ from the true cells.
        gaps: The missing cells of each class, as reported.
        is_hidden: Whether the reported numbers of missing cells differ from the true numbers.
        groups: For each class, a number in each group of cells, and the sizes of the groups.
        weight: The reported number of cells.
    """

    cells: Float64[np.ndarray, "m"]
    is_changed: bool
    gaps: Int64[np.ndarray, "3"]
    is_hidden: bool
    groups: tuple[tuple[Float64[np.ndarray, "_"], Int64[np.ndarray, "_"]], ...]
    weight: int

    @classmethod
    def of(cls, cohort: Cohort, index: int) -> "NumberCells":
        """Prepare the cells of an input.

        If too few cells of a class are missing, they count as present, distributed like the others; if too few are
        present, they count as missing.

        Raises:
            DataError: A number is so large that its square cannot be added.
        """
        values, least = cohort.values[:, index], cohort.least_cell
        there = ~np.isnan(values)
        if (np.abs(values[there]) > LARGEST_NUMBER).any():
            column = f"column {cohort.columns.inputs[index].column!r}"
            hint = "divide the numbers by a constant"
            raise DataError(column, got="larger numbers", allowed=f"numbers up to {LARGEST_NUMBER:.0e}", hint=hint)
        gaps, groups, is_hidden = np.zeros(3, dtype=np.int64), [], False
        for number, rows in enumerate(cohort.classes):
            present, total = values[rows & there], int(rows.sum())
            missing = total - len(present)
            if is_small([missing, len(present)], least):
                is_hidden = True
                missing, present = (0, present) if len(present) >= least else (total, present[:0])
            points, sizes = group(present, least)
            if len(sizes):
                middle = int(np.searchsorted(np.cumsum(sizes), sizes.sum() / 2))
                sizes[middle] += total - missing - sizes.sum()
            gaps[number] = missing
            groups.append((points, sizes))
        weight = len(cohort) - int(gaps.sum())
        if min(weight, int(there.sum())) < cohort.fewest:
            nothing = np.zeros(0), np.zeros(0, dtype=np.int64)
            return cls(np.zeros(0), False, gaps, is_hidden, (nothing,) * 3, 0)
        cells = values[there]
        few = len(np.unique(cells)) <= _FEW_VALUES
        if least == 1 or not (is_hidden or few or hide_rare(cells, least) is not cells):
            return cls(cells, False, gaps, is_hidden, tuple(groups), weight)
        # the mean determines a hidden number of missing cells, and with the deviation the counts of so few values
        kept = np.concatenate([np.repeat(points, sizes) for points, sizes in groups])
        return cls(kept, not np.array_equal(np.sort(kept), np.sort(cells)), gaps, is_hidden, tuple(groups), weight)

    def sums(self, origin: float) -> tuple[Fraction, Fraction]:
        """Return the sums of differences from an origin and of their squares, as if all `weight` cells were known.

        The differences are rounded about the cells' own median. Otherwise a server that chooses origins could count the
        cells whose differences it makes round up.
        """
        if not len(self.cells):
            return Fraction(0), Fraction(0)
        middle = float(np.partition(self.cells, len(self.cells) // 2)[len(self.cells) // 2])
        differences = self.cells - middle
        share, shift = Fraction(self.weight, len(self.cells)), Fraction(middle) - Fraction(origin)
        first, second = (Fraction(math.fsum((differences**power).tolist())) * share for power in (1, 2))
        return first + self.weight * shift, second + 2 * shift * first + self.weight * shift**2

    def count(self, borders: Float64[np.ndarray, "b"]) -> Int64[np.ndarray, "3 bins"]:
        """Count the cells by class and bin. A bin begins at its lower border."""
        finite = borders[np.isfinite(borders)]
        return np.stack(
            [
                np.bincount(np.searchsorted(finite, points, "right"), weights=sizes, minlength=len(borders) + 1)
                for points, sizes in self.groups
            ]
        ).astype(np.int64)
