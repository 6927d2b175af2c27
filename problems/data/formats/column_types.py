"""Types of a csv file's columns: a column of numbers with spaces around them is numeric, not text."""

import io
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

NA_WORDS = frozenset(
    (
        "",
        "#N/A",
        "#N/A N/A",
        "#NA",
        "-1.#IND",
        "-1.#QNAN",
        "-NaN",
        "-nan",
        "1.#IND",
        "1.#QNAN",
        "<NA>",
        "N/A",
        "NA",
        "NULL",
        "NaN",
        "None",
        "n/a",
        "nan",
        "null",
    )
)
"""The cells that pandas reads as missing."""
POINTS_BETWEEN_THOUSANDS = r"[-+]?[1-9]\d{0,2}(?:\.\d{3})*(?:,\d+)?|0"
"""A pattern of numbers that may have points between thousands, such as 1.234 or 1.234,5."""


def is_text(column: "pd.Series[Any]") -> bool:
    """Return whether a column contains text."""
    import pandas as pd

    if pd.api.types.is_object_dtype(column.dtype):
        return pd.api.types.infer_dtype(column, skipna=True) == "string"
    return pd.api.types.is_string_dtype(column.dtype) and not isinstance(column.dtype, pd.CategoricalDtype)


def text_columns(frame: "pd.DataFrame", excluded: Collection[str] = ()) -> list[str]:
    """Return the names of the columns that contain text.

    Args:
        frame: A table with different column names.
        excluded: The names to leave out.
    """
    return [name for name in frame.columns if name not in excluded and is_text(frame[name])]


def distinct_cells(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return the different cells of a column, without missing cells."""
    import pandas as pd

    return pd.Series(column.unique(), dtype=column.dtype).dropna()


def count_share(column: "pd.Series[Any]", pattern: str) -> float:
    """Return the share of a text column's different cells that match a pattern.

    Spaces around cells and missing cells are ignored. 0 for a column without cells.
    """
    cells = distinct_cells(column).str.strip()
    cells = cells[~cells.isin(NA_WORDS)]
    return float(cells.str.fullmatch(pattern).mean()) if len(cells) else 0.0


def convert_spaced(frame: "pd.DataFrame", words: Collection[str], decimal: str) -> "pd.DataFrame":
    """Convert text columns whose cells are all numbers, booleans or missing once the spaces around them are removed.

    Args:
        frame: The table that pandas has read.
        words: The columns that stay text. Only their missing cells are converted.
        decimal: The decimal mark.
    """
    converted = {}
    for name in text_columns(frame):
        distinct = distinct_cells(frame[name])
        stripped = distinct.str.strip()
        spaced = (stripped != distinct).to_numpy()
        if not spaced.any():
            continue
        gaps = stripped.isin(NA_WORDS)
        column = frame[name].mask(frame[name].isin(distinct[gaps]))
        if name not in words:
            column = _retype(column, distinct[~gaps], stripped[~gaps], decimal)
        converted[name] = column
    return frame.assign(**converted) if converted else frame


def _retype(
    column: "pd.Series[Any]", cells: "pd.Series[Any]", stripped: "pd.Series[Any]", decimal: str
) -> "pd.Series[Any]":
    """Convert a column to numbers or booleans, if all its cells without spaces are numbers or booleans.

    Args:
        column: The column.
        cells: The column's different cells.
        stripped: The same cells without spaces around them.
        decimal: The decimal mark.
    """
    import pandas as pd

    if not len(cells) or stripped.str.contains('["\r\n\x01]', regex=True).any():
        return column
    # use pandas' parser, so the numbers are the same as from a file without spaces
    lines = io.StringIO("\n".join(["cell", *stripped]))
    parsed = pd.read_csv(lines, sep="\x01", decimal=decimal, low_memory=False)["cell"]
    if is_text(parsed) or len(parsed) != len(cells):
        return column
    return column.map(dict(zip(cells, parsed, strict=True)))
