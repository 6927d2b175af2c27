"""Checks for table columns that must not be encoded silently: gaps, ids, dates, numbers as text."""

import logging
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float64

from problems.data.cells import is_numeric, texts
from problems.data.spec import Column, DataError

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

_ID_NAME = re.compile(r"(?i:(?:.*[\W_])?(?:id|uuid|mrn|ssn)(?:[\W_].*)?|idx|index|name|patient|subject)|.*[a-z]I[Dd]")
_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([T ].*)?")
_UNNAMED = re.compile(r"Unnamed: \d+")

_log = logging.getLogger(__name__)


def check_columns(
    frame: "pd.DataFrame",
    columns: Sequence[Column],
    found: Sequence[DataError] = (),
    *,
    site: bool = False,
    listable: bool = True,
) -> None:
    """Refuse all columns that cannot be features as they are; warn of numbers that may mean missing values.

    Args:
        frame: the table.
        columns: those of its columns that are to be features. Text whose values are listed is checked for gaps only.
        found: earlier errors, to be reported with the rest.
        site: whether it is one site's file, where text must be listed.
        listable: whether ``feature-columns`` is read, so that hints may name it.

    Raises:
        DataError: names every such column, but no values, since a site's message leaves the site.
    """
    listing = ", or list its values in feature-columns, as in sex[f|m]" if listable else ""
    faults = [fault for column in columns for fault in _faults(frame[column.name], column, site, listing)]
    if found or faults:
        # Equal hints that follow each other are printed once.
        raise DataError.join([*found, *sorted(faults, key=lambda fault: fault.hint)])
    numeric = [frame[one.name] for one in columns if not one.categories and is_numeric(frame[one.name])]
    if doubts := [text for text in map(_sentinels, numeric) if text]:
        text = "columns hold %s and else nothing below 0: where that means missing, fill or drop it"
        _log.warning(text, ", ".join(doubts))


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


def _faults(values: "pd.Series[Any]", column: Column, site: bool, listing: str) -> Iterator[DataError]:
    def fault(got: str, allowed: str, hint: str) -> DataError:
        return DataError(f"column {column.name!r}", got=got, allowed=allowed, hint=hint)

    others = ", or name others in feature-columns" if listing else ""
    an_id = fault("what looks like an id", "features", f"drop the column{others}")
    if _UNNAMED.fullmatch(column.name):
        yield fault("no name in the file, as numbers of rows have", "a name", "write the table without its index")
        return
    if not column.categories:
        try:
            if is_numeric(values):
                if _is_id(numeric_column(values), column.name):
                    yield an_id
                return
        except DataError as error:
            yield error
            return
    places = np.flatnonzero(values.notna())
    if len(places) < len(values):
        missing = f"{len(values) - len(places):,} of {len(values):,} values missing"
        yield fault(missing, "none", "fill or drop them")
    if column.categories:
        strange = np.flatnonzero(values.notna() & ~np.isin(texts(values)[0], column.categories))
        if site and len(strange):
            foreign = f"{len(strange):,} of {len(values):,} values that are none of those in feature-columns"
            got, allowed = f"{foreign}, the first in row {strange[0] + 1:,}", ", ".join(column.categories)
            yield fault(got, allowed, "list them in feature-columns")
    if column.categories or not len(places):
        return
    words = values.iloc[places].astype(str).str.strip()
    different, numbers = words.nunique(), _marks(words)
    if numbers.sum() >= MOSTLY * (~words.isin(MARKERS)).sum() > 0:
        strays = places[~numbers]
        but = f" but for {len(strays):,} of {len(values):,}, the first in row {strays[0] + 1:,}" if len(strays) else ""
        yield fault(f"numbers as text{but}", "numbers alone", f"mend or drop these cells{listing}")
    elif _marks(words.str.replace(",", ".", regex=False)).mean() >= MOSTLY:
        yield fault("numbers with decimal commas", "decimal points", "write them with points")
    elif words.str.fullmatch(_DATE).mean() >= MOSTLY:
        yield fault("dates", "numbers and text", "encode them as numbers, days for instance, or drop the column")
    elif _ID_NAME.fullmatch(column.name) or (different > 2 and 2 * different > len(words)):
        yield an_id
    elif different > MOST_VALUES:
        yield fault(f"text of {different:,} different values", f"{MOST_VALUES} at most", f"drop or encode it{listing}")
    elif site:
        yield fault("text", "numbers, and text whose values are listed", f"encode it alike at every site{listing}")


def _is_id(numbers: Float64[np.ndarray, "n"], name: str) -> bool:
    """Whether whole numbers count the rows, or are nearly all different in a column named like an id."""
    if len(numbers) < FEWEST_ROWS or not (numbers == np.round(numbers)).all():
        return False
    counted = numbers[0] in (0, 1) and bool((np.diff(numbers) == 1).all())
    return counted or bool(_ID_NAME.fullmatch(name) and len(np.unique(numbers)) > MOSTLY * len(numbers))


def _sentinels(values: "pd.Series[Any]") -> str:
    """The value that may mean "missing", and how often it occurs; "" if there is none."""
    numbers = numeric_column(values)
    least = numbers.min()
    if least not in SENTINELS or (numbers[numbers != least] < 0).any():
        return ""
    return f"{str(values.name)!r} {least:g} ({int((numbers == least).sum()):,} of {len(numbers):,})"


def _marks(texts: "pd.Series[str]") -> Bool[np.ndarray, "n"]:
    """Which texts are numbers."""
    import pandas as pd

    return pd.to_numeric(texts, errors="coerce").notna().to_numpy()
