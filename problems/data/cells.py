"""Conversion of a table's cells to numbers, dates and text. Cells may be private, so no error quotes a cell."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from problems.data.spec import DataError

if TYPE_CHECKING:
    import pandas as pd

# Dates in the form of ISO 8601, with the year first, perhaps with a time of the day and a zone.
ISO_DATE = r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?(?:Z|[+-]\d{2}:?\d{2}))?)?"
TRUTHS = {"true": 1.0, "false": 0.0}
"""Texts that are booleans, in lower case."""


def is_numeric(column: "pd.Series[Any]") -> bool:
    """Return whether a column contains numbers or booleans, not text.

    Raises:
        DataError: The column contains neither numbers nor text, but for example durations; names the column.
    """
    import pandas as pd

    kinds = pd.api.types
    categories = isinstance(column.dtype, pd.CategoricalDtype)
    truths = kinds.is_bool_dtype(column.dtype) and not categories
    if (truths or kinds.is_numeric_dtype(column.dtype)) and not kinds.is_complex_dtype(column.dtype):
        return True
    text = kinds.is_string_dtype(column.dtype) or kinds.is_object_dtype(column.dtype)
    if text or categories:
        return False
    raise _error(column, f"type {column.dtype}", "numbers and text", "convert the column to numbers or text")


def is_date(column: "pd.Series[Any]") -> bool:
    """Return whether a column has a date type; a column of text with dates has not."""
    import pandas as pd

    return pd.api.types.is_datetime64_any_dtype(column.dtype)


def numbers(column: "pd.Series[Any]") -> Float64[np.ndarray, "n"]:
    """Return the numbers of a column, NaN for a missing cell; true is 1 and false is 0.

    Raises:
        DataError: A cell is text but not a number, or is infinite.
    """
    import pandas as pd

    if is_date(column):
        raise _error(column, "dates", "numbers", "convert the dates to numbers")
    values: np.ndarray
    if is_numeric(column):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        there = column.notna().to_numpy()
        words = column[there].map(str).str.strip()
        parsed = pd.to_numeric(words, errors="coerce").fillna(words.str.lower().map(TRUTHS))
        values = np.full(len(column), np.nan)
        values[there] = parsed.to_numpy(dtype=np.float64)
        _refuse(column, there & np.isnan(values), "that are text", "numbers")
    _refuse(column, np.isinf(values), "that are not finite", "numbers")
    return values


def days(column: "pd.Series[Any]") -> Float64[np.ndarray, "n"]:
    """Return the dates of a column as days since 1970-01-01, NaN for a missing cell. Dates without a zone count as UTC.

    Raises:
        DataError: A cell is not a date in the form of ISO 8601.
    """
    import pandas as pd

    there = column.notna().to_numpy()
    if is_date(column):
        stamps = pd.to_datetime(column, utc=True)
    else:
        words = column.where(there, "").map(str).str.strip()
        stamps = pd.to_datetime(words.where(words.str.fullmatch(ISO_DATE)), utc=True, format="ISO8601", errors="coerce")
    # NumPy keeps the unit of the stamps, in which the year 9999 does not overflow
    values: np.ndarray = (stamps.dt.tz_localize(None).to_numpy() - np.datetime64(0, "D")) / np.timedelta64(1, "D")
    _refuse(column, there & np.isnan(values), "that are not dates", "dates such as 1970-01-31")
    return values


def texts(column: "pd.Series[Any]") -> tuple[Shaped[np.ndarray, "n"], Bool[np.ndarray, "n"]]:
    """Return each cell as text, and a mask of the missing cells.

    Texts have no surrounding spaces, whole numbers no decimal point. The text of a missing cell is "".
    """
    import pandas as pd

    write = str if is_date(column) else as_text
    missing = column.isna().to_numpy(dtype=bool)
    cells = column.to_numpy(dtype=object)
    if not pd.api.types.is_object_dtype(column.dtype):  # among objects, 1 and True would count as the same cell
        # each different cell is converted once
        codes, distinct = pd.factorize(column)
        words = [write(cell) for cell in pd.Series(distinct, dtype=column.dtype).to_numpy(dtype=object)]
        return np.array([*words, ""], dtype=str)[codes], missing
    return np.array(["" if gap else write(cell) for cell, gap in zip(cells, missing, strict=True)], dtype=str), missing


def as_listed(cells: Shaped[np.ndarray, "n"], listed: Sequence[str]) -> Shaped[np.ndarray, "n"]:
    """Return cells with numbers spelled like the listed values: "1.0" becomes "1" if "1" is listed."""
    rewritten = {cell: as_text(float(cell)) for cell in np.unique(cells[~np.isin(cells, listed)]) if is_number(cell)}
    meant = {cell: text for cell, text in rewritten.items() if text in listed}
    return np.array([meant.get(cell, cell) for cell in cells], dtype=str) if meant else cells


def without_markers(column: "pd.Series[Any]", markers: Sequence[str]) -> "pd.Series[Any]":
    """Return a column in which empty texts and all cells that mean "missing" are missing.

    Args:
        column: A column of any type.
        markers: The cells that mean "missing", such as "?" or "-999"; numbers are compared by value.
    """
    import pandas as pd

    if is_date(column):
        return column
    marked = {float(marker) for marker in markers if is_number(marker)}
    hits: pd.Series[bool]
    if pd.api.types.is_numeric_dtype(column.dtype):
        hits = column.isin(marked) & (not pd.api.types.is_bool_dtype(column.dtype))
    else:
        words = column.astype(object).map(str).str.strip()
        hits = words.isin(["", *markers])
        if marked:
            hits |= pd.to_numeric(words, errors="coerce").isin(marked)
    return column.mask(hits) if hits.any() else column


def as_text(value: Any) -> str:
    """Return a label or category as text: whole numbers without a decimal point."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def is_number(text: str) -> bool:
    """Return whether a text is a finite number."""
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def name_cells(bad: Bool[np.ndarray, "n"], fault: str) -> str:
    """Count the cells with a fault, and name the first: "2 of 40 cells that are text, the first in row 3"."""
    return f"{int(bad.sum()):,} of {len(bad):,} cells {fault}, the first in row {int(np.argmax(bad)) + 1:,}"


def _refuse(column: "pd.Series[Any]", bad: Bool[np.ndarray, "n"], fault: str, allowed: str) -> None:
    if bad.any():
        raise _error(column, name_cells(bad, fault), allowed, f"correct the cells {fault}")


def _error(column: "pd.Series[Any]", got: str, allowed: str, hint: str) -> DataError:
    return DataError(f"column {str(column.name)!r}", got=got, allowed=allowed, hint=hint)
