"""Checks of a table's columns before they become features: missing cells, ids, unusual dates, numbers as text.

A column that fails is an error, since its encoding would be wrong or useless without any sign of it.
"""

import logging
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from problems.data.cells import ISO_DATE, TRUTHS, as_listed, days, is_date, is_numeric, name_cells, numbers, texts
from problems.data.doubts import find_sentinels
from problems.data.formats.disguises import MISSING_WORDS, find_disguise
from problems.data.markers import parse_markers
from problems.data.preprocessing import Kind
from problems.data.quoting import quote
from problems.data.spec import REST, Column, DataError, DataSpec

if TYPE_CHECKING:
    import pandas as pd

MAX_VALUES = 32
"""The largest number of different values in a text column whose values ``feature-columns`` does not list."""
MOSTLY = 0.8
"""A text column is recognised as numbers, or dates, with stray values if at least this share are numbers or dates. A
column that is named like an id is an id if more than this share of its values are different."""
FEWEST_ROWS = 20
"""The smallest number of rows in which a column of integers may be recognised as an id."""
SENTINELS = (-9, -99, -999, -9999)
MARKERS = ("?", "-", ".")
"""Cells that mean "missing" and do not count when a column of numbers is recognised."""
MIN_NUMBERS = 6
"""The smallest number of different numbers with which `MISSING_WORDS` do not count either. Fewer numbers may be codes,
such as 0 and 1 in addition to "unknown"."""

_DROP = "list the column in drop-columns"
_LISTING = f", or list its values in feature-columns, as in {REST},sex[f|m|{REST}]: {REST} means all other values"
_DECIMAL = ', or in a csv set decimal to ","'
ID_NAME = re.compile(r"(?i:(?:.*[\W_])?(?:id|uuid|mrn|ssn)(?:[\W_].*)?|idx|index|name|patient|subject)|.*[a-z]I[Dd]")
_DATE = re.compile(r"(\d{1,4}([-/.])\d{1,2}\2\d{1,4})([T ].*)?")
_GROUPED = r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?"
_UNNAMED = re.compile(r"Unnamed: \d+")

_log = logging.getLogger(__name__)


def check_columns(
    frame: "pd.DataFrame",
    columns: Sequence[Column],
    spec: DataSpec,
    errors: Sequence[DataError] = (),
    *,
    train_count: int | None = None,
    site: bool = False,
    private: bool = False,
) -> None:
    """Check that all columns can be features; warn of numbers that may mean "missing".

    Args:
        frame: The table, in which the cells in `DataSpec.missing_values` are missing.
        columns: The columns of features. Text columns with listed values are checked for missing cells and for
            values that are not listed.
        spec: The options, with the keys for columns.
        errors: Earlier errors, which are reported together with the columns' errors.
        train_count: The number of training rows, if rows of a test file follow the training rows; else None.
        site: Whether the file belongs to a single site: text values must be listed, and errors must not quote values.
        private: Whether errors are sent to another party, and must not quote values.

    Raises:
        DataError: Columns cannot be features; lists all such columns.
    """
    checks = [_Check(frame[column.name], column, spec, train_count, site, site or private) for column in columns]
    faults = [fault for check in checks for fault in check.faults()]
    if errors or faults:
        # Equal hints in succession are printed once.
        raise DataError.join([*errors, *sorted(faults, key=lambda fault: fault.hint)])
    if doubts := [text for text in (check.sentinels() for check in checks) if text]:
        words = (
            "columns contain %s and no other negative number: if this number means missing, list it in missing-values"
        )
        _log.warning(words, ", ".join(doubts))
    if far := [text for text in (check.far_values() for check in checks) if text]:
        words = "columns contain %s, far from all other cells: if these values mean missing"
        _log.warning(f"{words}, list them in missing-values, as in 'smoker:98|99'", ", ".join(far))


def kind_of(values: "pd.Series[Any]", spec: DataSpec) -> Kind | None:
    """Return the kind of a column's cells; None for text, each of whose values becomes a category.

    Numbers written as text count as numbers only if ``missing-values`` lists all other texts in the column.

    Raises:
        DataError: The column has an unsupported type; names it.
    """
    import pandas as pd

    if is_date(values):
        return "date"
    there = values.dropna()
    if is_numeric(values):
        boolean = pd.api.types.is_bool_dtype(values.dtype)
        return "empty" if there.empty else "boolean" if boolean else "number"
    words = there.map(str).str.strip()
    if words.empty:
        return "empty"
    if words.str.lower().isin(TRUTHS).all():
        return "boolean"
    if words.str.fullmatch(ISO_DATE).all():
        return "date"
    return "number" if parse_markers(spec.missing_values).of(str(values.name)) and _marks(words).all() else None


def is_index(values: "pd.Series[Any]") -> bool:
    """Return whether a column is an index that pandas wrote: it has no name, and different whole numbers."""
    if not _UNNAMED.fullmatch(str(values.name)) or not is_numeric(values) or values.isna().any():
        return False
    cells = numbers(values)
    return bool((cells >= 0).all() and (cells == np.round(cells)).all() and len(np.unique(cells)) == len(cells))


def numeric_column(column: "pd.Series[Any]") -> Float64[np.ndarray, "n"]:
    """Return a numeric column as an array.

    Raises:
        DataError: The column has missing or infinite values; gives their number and the first row.
    """
    values: np.ndarray = column.to_numpy(dtype=np.float64, na_value=np.nan)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        got = f"{len(bad):,} of {len(values):,} values missing or not finite, the first in row {bad[0] + 1:,}"
        raise DataError(
            f"column {str(column.name)!r}",
            got=got,
            allowed="no missing values",
            hint="fill the missing cells, or drop their rows",
        )
    return values


@dataclass(frozen=True)
class _Check:
    """The checks of a single column, ``values``; the other fields are arguments of `check_columns`."""

    values: "pd.Series[Any]"
    column: Column
    spec: DataSpec
    train_count: int | None
    site: bool
    private: bool

    @cached_property
    def kind(self) -> Kind | None:
        """The result of `kind_of`; None for a column with listed values."""
        return None if self.column.categories else kind_of(self.values, self.spec)

    def faults(self) -> Iterator[DataError]:
        """Yield the faults of the column."""
        if _UNNAMED.fullmatch(self.column.name):
            yield self._fault("no name in the file", "a name", f"{_DROP}, or write the table without its index")
            return
        try:
            gaps = self.values.isna().to_numpy()
            if self.kind is not None and gaps.all() and not self.site and self.spec.missing != "error":
                yield self._fault("missing cells only", "columns with cells", _DROP)
            if gaps.any() and self.spec.missing == "error":
                hint = "set missing to mean, median or indicator, or fill the missing cells"
                yield self._fault(name_cells(gaps, "missing"), "no missing cells", hint)
            if _has_nested(self.values):
                hint = f"{_DROP}, or write each value into a separate column"
                yield self._fault("cells that are lists or the like", "a single value in each cell", hint)
            elif self.column.categories:
                yield from self._strangers()
            elif self.kind is None:
                yield from self._faults_of_text(np.flatnonzero(~gaps))
            elif self.kind == "date":
                days(self.values)
            elif self.kind != "empty":
                cells = numbers(self.values)[: self.train_count]  # an id may start again in the test file
                if self.kind == "number" and _is_id(cells[~np.isnan(cells)], self.column.name):
                    yield self._an_id
        except DataError as error:
            yield error

    def sentinels(self) -> str:
        """Describe a negative number that may mean "missing", such as -99, and its frequency; "" if there is none."""
        if self.kind != "number":
            return ""
        cells = numbers(self.values)
        smallest = np.nanmin(cells)
        if smallest not in SENTINELS or (cells[cells != smallest] < 0).any():
            return ""
        return f"{self.column.name!r} {smallest:g} ({int((cells == smallest).sum()):,} of {len(cells):,})"

    def far_values(self) -> str:
        """Describe extreme values that may mean "missing", and their frequency; "" if there are none."""
        if self.kind not in ("number", "date") or self.sentinels():
            return ""
        cells = days(self.values) if self.kind == "date" else numbers(self.values)
        values = find_sentinels(cells[~np.isnan(cells)], dates=self.kind == "date")
        if not values:
            return ""
        texts = [f"{np.datetime64(int(value), 'D')}" if self.kind == "date" else f"{value:g}" for value in values]
        return f"{self.column.name!r} {' and '.join(texts)} ({int(np.isin(cells, values).sum()):,} of {len(cells):,})"

    def _strangers(self) -> Iterator[DataError]:
        """Yield an error, or log a warning, if a column with listed values contains other values.

        It is an error in a site's file only.
        """
        listed = self.column.categories
        strange = self.values.notna().to_numpy() & ~np.isin(as_listed(texts(self.values)[0], listed), listed)
        if REST in listed or not strange.any():
            return
        if not self.site:
            what = name_cells(strange, "that are not listed in feature-columns")
            _log.warning("column %r has %s: they belong to no category", self.column.name, what)
        else:
            hint = f"list all values in feature-columns, or add {REST} for all others"
            yield self._fault(name_cells(strange, "that are not listed in feature-columns"), ", ".join(listed), hint)

    def _faults_of_text(self, rows: Int64[np.ndarray, "there"]) -> Iterator[DataError]:
        """Yield the faults of a text column; ``rows`` are the rows with cells."""
        words = self.values.iloc[rows].map(str).str.strip()
        different, numbers, dates = words.nunique(), _marks(words), words.str.fullmatch(_DATE).to_numpy()

        def strays(good: Bool[np.ndarray, "there"]) -> str:
            wrong = rows[~good]
            where = f", the first in row {wrong[0] + 1:,}" if len(wrong) else ""
            return f" except for {len(wrong):,} of {len(self.values):,}{where}" if len(wrong) else ""

        markers = ", or list the missing values in missing-values"
        missing_words: Collection[str] = MISSING_WORDS if words[numbers].nunique() >= MIN_NUMBERS else MARKERS
        if numbers.sum() >= MOSTLY * (~words.str.casefold().isin(missing_words)).sum() > 0:
            hint = f"correct or drop the cells that are not numbers{markers}{_LISTING}"
            yield self._fault(f"numbers as text{strays(numbers)}", "numbers alone", hint)
        elif _has_thousands(words):
            hint = f"write 1,234 as 1234 or, if the comma is a decimal comma, as 1.234{_DECIMAL}"
            yield self._fault("numbers with commas between thousands", "numbers without such commas", hint)
        elif _marks(words.str.replace(",", ".", regex=False)).mean() >= MOSTLY:
            hint = f"write the numbers with decimal points{_DECIMAL}"
            yield self._fault("numbers with decimal commas", "decimal points", hint)
        elif disguise := find_disguise(words.tolist()):
            pair = disguise.startswith("two")
            hint = f"write {'each number into a separate column' if pair else 'the numbers alone'}{_LISTING}"
            yield self._fault(disguise, "a single number in each cell" if pair else "numbers alone", hint)
        elif dates.mean() >= MOSTLY:
            forms = words[dates].str.extract(_DATE)[0].str.replace(r"\d", "0", regex=True)
            form = forms.value_counts().index[0]
            iso = form == "0000-00-00"
            correct = f"correct the cells that are not dates{markers}"
            hint = correct if iso else f"write the dates as year-month-day, or {_DROP}"
            got = f"dates{strays(dates)}" if iso else f"dates in the form {form}"
            yield self._fault(got, "dates in the form 0000-00-00, years first", hint)
        elif ID_NAME.fullmatch(self.column.name) or (different > 2 and 2 * different > len(words)):
            yield self._an_id
        elif different > MAX_VALUES:
            listing = f"list the frequent values in feature-columns with {REST} for all others, as in "
            hint = f"{_DROP}, encode the column as numbers, or {listing}{self._example(words)}"
            yield self._fault(f"text of {different:,} different values", f"at most {MAX_VALUES} values", hint)
        elif self.site:
            allowed, hint = (
                "numbers, and text whose values are listed",
                f"encode the column as numbers in the same way at every site{_LISTING}",
            )
            yield self._fault("text", allowed, hint)

    def _example(self, words: "pd.Series[str]") -> str:
        """Return an example for feature-columns, with the column's most frequent values unless these are private."""
        frequent = words.value_counts().index[:2].tolist()
        if self.private or len(frequent) < 2:
            return f"job[baker|nurse|{REST}]"
        return f"{quote(self.column.name)}[{'|'.join(map(quote, frequent))}|{REST}]"

    def _fault(self, got: str, allowed: str, hint: str) -> DataError:
        return DataError(f"column {self.column.name!r}", got=got, allowed=allowed, hint=hint)

    @property
    def _an_id(self) -> DataError:
        return self._fault(
            "a column that looks like an id", "features", f"{_DROP}, or list other columns in feature-columns"
        )


def _has_thousands(words: "pd.Series[str]") -> bool:
    """Return whether texts are mostly numbers whose commas are all before three digits, as in 1,234.5."""
    commas = words.str.contains(",", regex=False)
    grouped = words[commas].str.fullmatch(_GROUPED)
    return bool(commas.any() and grouped.all() and _marks(words.str.replace(",", "", regex=False)).mean() >= MOSTLY)


def _has_nested(values: "pd.Series[Any]") -> bool:
    """Return whether cells contain lists or the like, which is possible in a parquet file."""
    if values.dtype != object:
        return False
    return any(isinstance(cell, list | tuple | dict | set | np.ndarray) for cell in values)


def _is_id(numbers: Float64[np.ndarray, "n"], name: str) -> bool:
    """Return whether numbers are ids: they count the rows, or the name suggests ids and nearly all numbers differ."""
    if len(numbers) < FEWEST_ROWS or not (numbers == np.round(numbers)).all():
        return False
    counted = bool((np.diff(numbers) == 1).all())
    return counted or bool(ID_NAME.fullmatch(name) and len(np.unique(numbers)) > MOSTLY * len(numbers))


def _marks(texts: "pd.Series[str]") -> Bool[np.ndarray, "n"]:
    """Find the texts that are numbers."""
    import pandas as pd

    return pd.to_numeric(texts, errors="coerce").notna().to_numpy()
