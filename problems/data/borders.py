"""Borders of bins that the run config chooses, from the key ``borders``, and the protection of a site against them.

A server could choose borders between which a single row lies, or run twice with borders that differ by one row. A site
with its own file therefore divides the cells of such a column into groups of neighbours, and all cells of a group are
in the same bin. The groups do not depend on the borders (J. Domingo-Ferrer and J. M. Mateo-Sanz, "Practical
data-oriented microaggregation for statistical disclosure control", IEEE TKDE 14, 2002).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from jaxtyping import Float64

from problems.data.cells import is_number
from problems.data.quoting import quote, split_items, split_markers
from problems.data.spec import MAX_BINS, PAGE, DataError

KEY = "borders"
Borders = tuple[tuple[str, tuple[float, ...]], ...]
"""Pairs of a column's name and its borders, ascending."""


@lru_cache(maxsize=16)
def parse_borders(text: str) -> Borders:
    """Parse the value of ``borders``.

    ``age:30|45, income:1000`` means three bins of the column "age" and two of "income". A column with a comma or a
    colon must be quoted, as in `problems.data.markers.parse_markers`.

    Raises:
        DataError: A part is not a column with ascending finite numbers, a column occurs twice or has too many borders.
    """
    borders: dict[str, tuple[float, ...]] = {}
    for item in split_items(text, values=True) if text.strip() else []:
        column, values = split_markers(item)
        numbers = tuple(float(value) for value in values if is_number(value))
        ascends = all(low < high for low, high in pairwise(numbers))
        if not column or column in borders or len(numbers) < len(values) or not ascends or len(numbers) >= MAX_BINS:
            allowed = f"column:number|number, each column once, at most {MAX_BINS - 1} ascending numbers"
            hint = f"write it like 'age:30|45, income:1000'; {PAGE}"
            raise DataError(KEY, got=f"{text!r}: {item.strip()!r}", allowed=allowed, hint=hint)
        borders[column] = numbers
    return tuple(borders.items())


def write_borders(borders: Mapping[str, Sequence[float]]) -> str:
    """Return borders as a value of ``borders``.

    Args:
        borders: Column -> its borders, ascending. Columns without borders are left out.

    Example:
        >>> write_borders({"age": [30.0, 45.5], "income, total": [1000]})
        'age:30|45.5, "income, total":1000'
    """
    return ", ".join(
        f"{_quote(name)}:{'|'.join(str(float(number)).removesuffix('.0') for number in numbers)}"
        for name, numbers in borders.items()
        if len(numbers)
    )


def check_bordered(borders: Borders, numeric: Sequence[str]) -> None:
    """Check that all columns with borders are columns of numbers or dates.

    Args:
        borders: The borders.
        numeric: The names of the table's columns of numbers and dates.

    Raises:
        DataError: A column is not among them.
    """
    if lacking := [repr(name) for name, _ in borders if name not in numeric]:
        allowed = f"columns of numbers or dates: {', '.join(numeric)}"
        hint = "remove the columns from borders, or correct their names"
        raise DataError(KEY, got=f"borders of {', '.join(lacking[:10])}", allowed=allowed, hint=hint)


def coarsen(cells: Float64[np.ndarray, "n"], min_rows: int) -> Float64[np.ndarray, "n"]:
    """Return the cells of a column with each cell replaced by the middle of its group; a missing cell stays NaN.

    Groups contain neighbouring cells, at least ``min_rows``, and all cells that are equal. The middle is midway between
    the two middle cells.

    Args:
        cells: The cells of a site's training rows.
        min_rows: The smallest number of cells of a group. Fewer cells are one group.
    """
    coarse, present = cells.copy(), ~np.isnan(cells)
    ordered = np.sort(cells[present])
    total = len(ordered)
    if not total:
        return coarse
    starts = [0]
    while total - starts[-1] >= 2 * min_rows:
        end = int(np.searchsorted(ordered, ordered[starts[-1] + min_rows - 1], side="right"))
        if total - end < min_rows:
            break
        starts.append(end)
    edges = np.array([*starts, total])
    middles = ordered[(edges[:-1] + edges[1:] - 1) // 2] / 2 + ordered[(edges[:-1] + edges[1:]) // 2] / 2
    groups = np.searchsorted(ordered[edges[1:-1]], cells[present], side="right")
    coarse[present] = middles[groups]
    return coarse


def _quote(name: str) -> str:
    return quote(name) if ":" not in name or quote(name) != name else f'"{name}"'
