"""Markers: the cells that mean "missing", such as "?" or "-999", from the key ``missing-values``."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from problems.data.quoting import split_items, split_markers, unquote
from problems.data.spec import PAGE, DataError
from problems.errors import join_first

KEY = "missing-values"


@dataclass(frozen=True)
class Markers:
    """The cells that mean "missing".

    Attributes:
        everywhere: The markers for all columns.
        by_column: Pairs of a column's name and the further markers of this column.
    """

    everywhere: tuple[str, ...] = ()
    by_column: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def of(self, column: str) -> tuple[str, ...]:
        """Return the markers of a column."""
        return self.everywhere + dict(self.by_column).get(column, ())


@lru_cache(maxsize=16)
def parse_markers(text: str) -> Markers:
    """Parse the value of ``missing-values``.

    ``?, smoker:97|98`` means "?" in all columns, and "97" and "98" in the column "smoker". A column or marker with a
    comma, a colon or a bar must be quoted, as in `problems.data.spec.parse_columns`.

    Raises:
        DataError: A part is empty, or a marker occurs twice.
    """
    everywhere, by_column = list[str](), dict[str, list[str]]()
    for item in split_items(text, values=True) if text.strip() else []:
        column, values = split_markers(item)
        if column is None:
            everywhere.append(unquote(item))
        else:
            by_column.setdefault(column, []).extend(values)
    lists = [everywhere, *by_column.values()]
    if "" in by_column or any("" in markers or len(set(markers)) < len(markers) for markers in lists):
        got, allowed = (
            f"{text!r}, with an empty or repeated marker",
            "different comma-separated markers, or column:marker|marker",
        )
        hint = f'remove the marker, or quote markers that contain , : | or "; see {PAGE}'
        raise DataError(KEY, got=got, allowed=allowed, hint=hint)
    return Markers(tuple(everywhere), tuple((name, tuple(markers)) for name, markers in by_column.items()))


def describe_hits(markers: Markers, hits: Mapping[str, int], rows: int) -> list[str]:
    """Return a line for the log that counts the cells that equal a marker, in a list; an empty list without markers.

    Args:
        markers: The markers.
        hits: The number of each column's cells that equal a marker.
        rows: The number of the table's rows.
    """
    if markers == Markers():
        return []
    with_markers = {name for name, _ in markers.by_column}
    counts = [f"{name!r} {count:,}" for name, count in hits.items() if count or name in with_markers]
    if not counts:
        return [f"{KEY}: no cell matches {', '.join(map(repr, markers.everywhere))}"]
    return [f"{KEY}: cells of {rows:,} rows that became missing: {', '.join(counts)}"]


def check_names(markers: Markers, columns: Iterable[str], origin: object) -> None:
    """Check that the table has all columns for which ``missing-values`` lists markers.

    Args:
        markers: The markers.
        columns: The names of the table's columns.
        origin: The table's file, for the error.

    Raises:
        DataError: The table lacks a column.
    """
    names = list(columns)
    if lacking := [repr(name) for name, _ in markers.by_column if name not in names]:
        shown = join_first(names, 30)
        got = f"markers of {', '.join(lacking[:10])}, which {origin} lacks"
        hint = "write an existing column before the colon, or quote a marker that contains a colon"
        raise DataError(KEY, got=got, allowed=f"columns {shown}", hint=hint)
