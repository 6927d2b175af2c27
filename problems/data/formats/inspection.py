"""Checks for table columns that must not be encoded silently: gaps, ids, other forms of dates, numbers as text."""

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

MOST_VALUES = 32
"""Most distinct values of a text column that is encoded without a list of them."""
MOSTLY = 0.8
"""A text column with this share of numbers, or dates, counts as a column of these with a few stray values. A column
named like an id is one if more than this share of its values are different."""
FEWEST_ROWS = 20
"""Fewest rows with which a column of integers may be taken for an id."""
SENTINELS = (-9, -99, -999, -9999)
MARKERS = ("?", "-", ".")
"""Cells that mean "missing": they do not count when a column of numbers is recognised."""
MIN_NUMBERS = 6
"""Fewest different numbers beside which other words that often mean "missing" do not count either: fewer numbers, such
as 0 and 1 beside "unknown", may be codes."""

_DROP = "name the column in drop-columns"
_LISTING = f", or list its values in feature-columns, as in {REST},sex[f|m|{REST}]: {REST} is all others"
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
    found: Sequence[DataError] = (),
    *,
    train_count: int | None = None,
    site: bool = False,
    private: bool = False,
) -> None:
    """Refuse all columns that cannot be features as they are; warn of numbers that may mean missing values.

    Args:
        frame: the table, in which `DataSpec.missing_values` are missing.
        columns: those of its columns that are to be features. Text whose values are listed is checked for gaps only.
        spec: its keys for columns.
        found: earlier errors, to be reported with the rest.
        train_count: how many of the rows are of the training file, where those of a test file follow.
        site: whether it is one site's file, where text must be listed.
        private: whether the errors leave whoever owns the table, and may quote no value; so do those of a site.

    Raises:
        DataError: names every such column.
    """
    checks = [_Check(frame[column.name], column, spec, train_count, site, site or private) for column in columns]
    faults = [fault for check in checks for fault in check.faults()]
    if found or faults:
        # Equal hints that follow each other are printed once.
        raise DataError.join([*found, *sorted(faults, key=lambda fault: fault.hint)])
    if doubts := [text for text in (check.sentinels() for check in checks) if text]:
        words = "columns hold %s and else nothing below 0: where that means missing, name it in missing-values"
        _log.warning(words, ", ".join(doubts))
    if far := [text for text in (check.far_values() for check in checks) if text]:
        words = (
            "columns hold %s, far from all other cells: where that means missing, name it in missing-values, for one"
        )
        _log.warning(f"{words} column as in 'smoker:98|99'", ", ".join(far))


def kind_of(values: "pd.Series[Any]", spec: DataSpec) -> Kind | None:
    """Return what the cells of a column are, or None for text, of which each value becomes a category.

    Numbers that are written as text are numbers only where ``missing-values`` says which other text there may be.

    Raises:
        DataError: names a column of a type that is none of these.
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
    """Whether a column without a name counts rows, as an index that pandas wrote: whole numbers, all different."""
    if not _UNNAMED.fullmatch(str(values.name)) or not is_numeric(values) or values.isna().any():
        return False
    found = numbers(values)
    return bool((found >= 0).all() and (found == np.round(found)).all() and len(np.unique(found)) == len(found))


def numeric_column(column: "pd.Series[Any]") -> Float64[np.ndarray, "n"]:
    """Return a numeric column.

    Raises:
        DataError: names a column with missing or infinite values, and says how many and where the first is.
    """
    values: np.ndarray = column.to_numpy(dtype=np.float64, na_value=np.nan)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        got = f"{len(bad):,} of {len(values):,} values missing or not finite, the first in row {bad[0] + 1:,}"
        raise DataError(f"column {str(column.name)!r}", got=got, allowed="none", hint="fill or drop them")
    return values


@dataclass(frozen=True)
class _Check:
    """The checks of one column; the other fields are as of `check_columns`."""

    values: "pd.Series[Any]"
    column: Column
    spec: DataSpec
    train_count: int | None
    site: bool
    private: bool

    @cached_property
    def kind(self) -> Kind | None:
        """As of `kind_of`; None where values are listed, too."""
        return None if self.column.categories else kind_of(self.values, self.spec)

    def faults(self) -> Iterator[DataError]:
        """What is wrong with the column."""
        if _UNNAMED.fullmatch(self.column.name):
            yield self._fault("no name in the file", "a name", f"{_DROP}, or write the table without its index")
            return
        try:
            gaps = self.values.isna().to_numpy()
            if self.kind is not None and gaps.all() and not self.site and self.spec.missing != "error":
                yield self._fault("no cell that is not missing", "some", _DROP)
            if gaps.any() and self.spec.missing == "error":
                way_out = "set missing to mean, median or indicator, or fill or drop them"
                yield self._fault(name_cells(gaps, "missing"), "none", way_out)
            if _has_nested(self.values):
                way_out = f"{_DROP}, or write each value into a column of its own"
                yield self._fault("cells that are lists or the like", "one value a cell", way_out)
            elif self.column.categories:
                yield from self._strangers()
            elif self.kind is None:
                yield from self._faults_of_text(np.flatnonzero(~gaps))
            elif self.kind == "date":
                days(self.values)
            elif self.kind != "empty":
                found = numbers(self.values)[: self.train_count]  # an id may begin anew in the test file
                if self.kind == "number" and _is_id(found[~np.isnan(found)], self.column.name):
                    yield self._an_id
        except DataError as error:
            yield error

    def sentinels(self) -> str:
        """The value that may mean "missing", and how often it occurs; "" if there is none."""
        if self.kind != "number":
            return ""
        found = numbers(self.values)
        least = np.nanmin(found)
        if least not in SENTINELS or (found[found != least] < 0).any():
            return ""
        return f"{self.column.name!r} {least:g} ({int((found == least).sum()):,} of {len(found):,})"

    def far_values(self) -> str:
        """The values far from all others that may mean "missing", and how often they occur; "" if there are none."""
        if self.kind not in ("number", "date") or self.sentinels():
            return ""
        cells = days(self.values) if self.kind == "date" else numbers(self.values)
        values = find_sentinels(cells[~np.isnan(cells)], dates=self.kind == "date")
        if not values:
            return ""
        texts = [f"{np.datetime64(int(value), 'D')}" if self.kind == "date" else f"{value:g}" for value in values]
        return f"{self.column.name!r} {' and '.join(texts)} ({int(np.isin(cells, values).sum()):,} of {len(cells):,})"

    def _strangers(self) -> Iterator[DataError]:
        """Values of a site's file that are not listed, where all must be."""
        listed = self.column.categories
        strange = self.values.notna().to_numpy() & ~np.isin(as_listed(texts(self.values)[0], listed), listed)
        if REST in listed or not strange.any():
            return
        if not self.site:
            what = name_cells(strange, "that are none of those in feature-columns")
            _log.warning("column %r has %s: they count as none of them", self.column.name, what)
        else:
            way_out = f"list them in feature-columns, or {REST} for all others"
            yield self._fault(
                name_cells(strange, "that are none of those in feature-columns"), ", ".join(listed), way_out
            )

    def _faults_of_text(self, places: Int64[np.ndarray, "there"]) -> Iterator[DataError]:
        """Faults of a column of text, whose cells in some places are not missing."""
        words = self.values.iloc[places].map(str).str.strip()
        different, numbers, dates = words.nunique(), _marks(words), words.str.fullmatch(_DATE).to_numpy()

        def strays(good: Bool[np.ndarray, "there"]) -> str:
            wrong = places[~good]
            where = f", the first in row {wrong[0] + 1:,}" if len(wrong) else ""
            return f" but for {len(wrong):,} of {len(self.values):,}{where}" if len(wrong) else ""

        markers = ", or name in missing-values what means missing"
        missing_words: Collection[str] = MISSING_WORDS if words[numbers].nunique() >= MIN_NUMBERS else MARKERS
        if numbers.sum() >= MOSTLY * (~words.str.casefold().isin(missing_words)).sum() > 0:
            way_out = f"mend or drop these cells{markers}{_LISTING}"
            yield self._fault(f"numbers as text{strays(numbers)}", "numbers alone", way_out)
        elif _has_thousands(words):
            way_out = f"write 1,234 as 1234 or, if the comma is a decimal one, as 1.234{_DECIMAL}"
            yield self._fault("numbers with commas between thousands", "numbers without", way_out)
        elif _marks(words.str.replace(",", ".", regex=False)).mean() >= MOSTLY:
            yield self._fault("numbers with decimal commas", "decimal points", f"write them with points{_DECIMAL}")
        elif disguise := find_disguise(words.tolist()):
            pair = disguise.startswith("two")
            way_out = f"write {'each into a separate column' if pair else 'the numbers alone'}{_LISTING}"
            yield self._fault(disguise, "one number in a cell" if pair else "numbers alone", way_out)
        elif dates.mean() >= MOSTLY:
            forms = words[dates].str.extract(_DATE)[0].str.replace(r"\d", "0", regex=True)
            form = forms.value_counts().index[0]
            iso = form == "0000-00-00"
            way_out = f"mend these cells{markers}" if iso else f"write them so, or {_DROP}"
            got = f"dates{strays(dates)}" if iso else f"dates in the form {form}"
            yield self._fault(got, "dates in the form 0000-00-00, years first", way_out)
        elif ID_NAME.fullmatch(self.column.name) or (different > 2 and 2 * different > len(words)):
            yield self._an_id
        elif different > MOST_VALUES:
            listing = f"list the frequent values in feature-columns with {REST} for all others, as in "
            way_out = f"{_DROP} or encode it, or {listing}{self._example(words)}"
            yield self._fault(f"text of {different:,} different values", f"{MOST_VALUES} at most", way_out)
        elif self.site:
            allowed, way_out = (
                "numbers, and text whose values are listed",
                f"encode it alike at every site{_LISTING}",
            )
            yield self._fault("text", allowed, way_out)

    def _example(self, words: "pd.Series[str]") -> str:
        """An entry of feature-columns: with the most frequent values or, where these are private, with others."""
        frequent = words.value_counts().index[:2].tolist()
        if self.private or len(frequent) < 2:
            return f"job[baker|nurse|{REST}]"
        return f"{quote(self.column.name)}[{'|'.join(map(quote, frequent))}|{REST}]"

    def _fault(self, got: str, allowed: str, hint: str) -> DataError:
        return DataError(f"column {self.column.name!r}", got=got, allowed=allowed, hint=hint)

    @property
    def _an_id(self) -> DataError:
        return self._fault("what looks like an id", "features", f"{_DROP}, or name others in feature-columns")


def _has_thousands(words: "pd.Series[str]") -> bool:
    """Whether texts are numbers for the most part, all of whose commas are before three digits, as in 1,234.5."""
    commas = words.str.contains(",", regex=False)
    grouped = words[commas].str.fullmatch(_GROUPED)
    return bool(commas.any() and grouped.all() and _marks(words.str.replace(",", "", regex=False)).mean() >= MOSTLY)


def _has_nested(values: "pd.Series[Any]") -> bool:
    """Whether cells hold several values, as those of a parquet file may."""
    if values.dtype != object:
        return False
    return any(isinstance(cell, list | tuple | dict | set | np.ndarray) for cell in values)


def _is_id(numbers: Float64[np.ndarray, "n"], name: str) -> bool:
    """Whether whole numbers count rows, from any number on, or nearly all differ in a column named like an id."""
    if len(numbers) < FEWEST_ROWS or not (numbers == np.round(numbers)).all():
        return False
    counted = bool((np.diff(numbers) == 1).all())
    return counted or bool(ID_NAME.fullmatch(name) and len(np.unique(numbers)) > MOSTLY * len(numbers))


def _marks(texts: "pd.Series[str]") -> Bool[np.ndarray, "n"]:
    """Which texts are numbers."""
    import pandas as pd

    return pd.to_numeric(texts, errors="coerce").notna().to_numpy()
