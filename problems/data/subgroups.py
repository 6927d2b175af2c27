"""Subgroups of rows by columns of a table: the key ``subgroups``, such as ``sex, age(18, 65, 80)``.

A column with borders has the groups below, between and above them. Another column has a group for each value, and a
group "other" for values that are not listed. In both cases rows with a missing cell are the group "missing". The column
need not be a feature.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int64

from problems.data.cells import as_listed, is_number, numbers, texts, without_markers
from problems.data.markers import parse_markers
from problems.data.quoting import split_values, unquote
from problems.data.spec import OWN, PAGE_AFTER, REST, TABLES, DataError, DataSpec, is_hub, parse_columns
from problems.errors import join_first

if TYPE_CHECKING:
    import pandas as pd

KEY = "subgroups"
# the data sets that have columns
TABULAR = (*TABLES, "gusto", "heart-disease", "uci-credit")
MAX_COLUMNS, MAX_GROUPS = 10, 20
OTHER, MISSING = "other", "missing"
_ALLOWED = "comma-separated columns: sex, sex[f|m] with values, or age(18, 65) with borders"
_QUOTED = r'"(?:[^"]|"")*"'
_ITEM = re.compile(rf"(?:{_QUOTED}|\([^)]*\)|\[(?:{_QUOTED}|[^\]\"])*\]|[^,\(\[\"])+")
_BORDERS = re.compile(rf"\s*({_QUOTED}|[^\(\[\"]+)\(([^()]*)\)\s*")


@dataclass(frozen=True)
class Subgroups:
    """The groups of a column.

    Attributes:
        column: The column's name.
        borders: The borders of a column of numbers, ascending. A row on a border belongs to the upper group.
        values: The values of another column. Both empty: the values in the data are not known yet.
    """

    column: str
    borders: tuple[float, ...] = ()
    values: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the groups, in the order of `codes`."""
        if not self.borders:
            return (*self.values, OTHER, MISSING)
        marks = [f"{border:g}" for border in self.borders]
        between = [f"{low} to < {high}" for low, high in pairwise(marks)]
        return (f"< {marks[0]}", *between, f">= {marks[-1]}", MISSING)

    def codes(self, column: pd.Series) -> Int64[np.ndarray, n]:
        """Return the index of each row's group among `names`.

        Args:
            column: The column's cells.

        Raises:
            DataError: The column has borders, and a cell is not a number.
        """
        if self.borders:
            found = numbers(column)
            codes: np.ndarray = np.searchsorted(np.array(self.borders), found, side="right")
            return np.where(np.isnan(found), len(self.borders) + 1, codes)
        cells, missing = texts(column)
        cells = as_listed(cells, self.values)
        index = {value: number for number, value in enumerate(self.values)}
        codes = np.array([index.get(cell, len(self.values)) for cell in cells.tolist()], dtype=np.int64)
        return np.where(missing, len(self.values) + 1, codes)


def parse_subgroups(text: str) -> tuple[Subgroups, ...]:
    """Parse the value of ``subgroups``.

    Args:
        text: The value. A name or value with a comma or bracket is quoted. Empty: no columns.

    Raises:
        DataError: A part is not a column, a column occurs twice, or there are more than `MAX_COLUMNS` columns.

    Example:
        >>> sex, age = parse_subgroups("sex[f|m], age(18, 65)")
        >>> sex.values, age.borders
        (('f', 'm'), (18.0, 65.0))
    """
    if not text.strip():
        return ()
    parts, start = [], 0
    while True:
        match = _ITEM.match(text, start)
        parts.append(match[0].strip() if match else "")
        start += len(match[0]) if match else 0
        if start >= len(text):
            break
        if text[start] != ",":
            raise _refuse(text, f"{text[start:]!r} after {parts[-1]!r}")
        start += 1
    columns = [_parse(part, text) for part in parts]
    names = [column.column for column in columns]
    if twice := [name for name in names if names.count(name) > 1]:
        raise _refuse(text, f"column {twice[0]!r} twice")
    if len(columns) > MAX_COLUMNS:
        raise _refuse(text, f"{len(columns)} columns, of at most {MAX_COLUMNS}")
    return tuple(columns)


def names_of(spec: DataSpec) -> list[str]:
    """Return the names of the columns of ``subgroups``."""
    return [column.column for column in parse_subgroups(spec.subgroups)]


def _parse(part: str, text: str) -> Subgroups:
    if match := _BORDERS.fullmatch(part):
        words = [word.strip() for word in match[2].split(",")]
        borders = tuple(float(word) for word in words if is_number(word))
        if len(borders) < len(words) or list(borders) != sorted(set(borders)) or len(borders) >= MAX_GROUPS:
            raise _refuse(text, f"{part!r}, whose borders are not ascending numbers, fewer than {MAX_GROUPS}")
        return Subgroups(unquote(match[1]), borders)
    try:
        name, values = split_values(part)
    except ValueError:
        name, values = "", None
    if not name or "(" in name or ")" in name:
        raise _refuse(text, f"{part!r}, which is not a column")
    if values is not None and ("" in values or len(set(values)) < len(values) or len(values) > MAX_GROUPS):
        raise _refuse(text, f"{part!r}, whose values are not different texts, at most {MAX_GROUPS}")
    return Subgroups(name, values=tuple(values or ()))


def _refuse(text: str, fault: str) -> DataError:
    hint = f"correct the list, see {PAGE_AFTER}"
    return DataError(KEY, got=f"{text!r}: {fault}", allowed=_ALLOWED, hint=hint)


def check_subgroups(spec: DataSpec) -> tuple[Subgroups, ...]:
    """Return the columns of ``subgroups``. Values that ``feature-columns`` lists count as listed.

    Args:
        spec: The options of the data.

    Raises:
        DataError: See `parse_subgroups`; or the data set has no columns, or the sites cannot agree on the values.
    """
    columns = parse_subgroups(spec.subgroups)
    if columns and not (spec.dataset in TABULAR or is_hub(spec.dataset)):
        allowed = f"'' with dataset {spec.dataset!r}, which is not a table; tables: {', '.join(TABULAR)}"
        raise DataError(KEY, got=repr(spec.subgroups), allowed=allowed, hint=f"remove {KEY}")
    if columns and any(column.column == spec.labels_in for column in columns):
        raise DataError(KEY, got=repr(spec.labels_in), allowed="columns except the label", hint="remove the column")
    if columns and (spec.dataset in TABLES or is_hub(spec.dataset)):
        listed = {
            column.name: tuple(value for value in column.categories if value != REST)
            for column in parse_columns(spec.feature_columns)
        }
        columns = tuple(
            column if column.borders or column.values else replace(column, values=listed.get(column.column, ()))
            for column in columns
        )
    unknown = [column.column for column in columns if not (column.borders or column.values)]
    if unknown and spec.partition == OWN:
        allowed = "listed values or borders, since each site's file may lack values of other sites"
        hint = f"write the column as {unknown[0]}[a|b] or {unknown[0]}(18, 65)"
        raise DataError(KEY, got=f"{unknown[0]!r} without values", allowed=allowed, hint=hint)
    return columns


def read_subgroups(
    spec: DataSpec, frames: Sequence[pd.DataFrame]
) -> tuple[tuple[Subgroups, ...], Int64[np.ndarray, "n c"]]:
    """Return the groups of a table's rows.

    Args:
        spec: The options of the data.
        frames: The tables in the order of the rows, with all their columns.

    Returns:
        The columns, with their values; and each row's group in each column.

    Raises:
        DataError: A table lacks a column, a column has more than `MAX_GROUPS` values and neither values nor borders, or
            see `Subgroups.codes`.
    """
    columns, codes = [], []
    for column in check_subgroups(spec):
        cells = [_cells(frame, column.column, spec) for frame in frames]
        if not (column.borders or column.values):
            column = replace(column, values=_find_values(column.column, cells))
        columns.append(column)
        codes.append(np.concatenate([column.codes(part) for part in cells]))
    rows = sum(map(len, frames))
    return tuple(columns), np.stack(codes, axis=1) if codes else np.zeros((rows, 0), np.int64)


def _cells(frame: pd.DataFrame, name: str, spec: DataSpec) -> pd.Series:
    names = list(map(str, frame.columns))
    if name not in names:
        private = spec.partition == OWN
        allowed = "columns of every site's file" if private else f"columns {join_first(names, 30)}"
        raise DataError(KEY, got=repr(name), allowed=allowed, hint="choose a column of the table")
    column = frame.iloc[:, names.index(name)]
    return without_markers(without_markers(column, ()), parse_markers(spec.missing_values).of(name))


def _find_values(name: str, cells: Sequence[pd.Series]) -> tuple[str, ...]:
    found: set[str] = set()
    for part in cells:
        words, missing = texts(part)
        found |= set(words[~missing].tolist())
    if len(found) > MAX_GROUPS:
        allowed = f"at most {MAX_GROUPS} values, or borders"
        hint = f"write borders, such as {name}(18, 65), or the values of interest, such as {name}[a|b]"
        raise DataError(KEY, got=f"{name!r} with {len(found)} values", allowed=allowed, hint=hint)
    by_value = all(map(is_number, found))
    return tuple(sorted(found, key=lambda text: (float(text) if by_value else 0.0, text)))
