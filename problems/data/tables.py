"""Tables, csv or parquet: numbers are standardised, text becomes one column a value."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from problems.data.source import Rows, Source, make_source, standardise
from problems.data.spec import DataError

if TYPE_CHECKING:
    import pandas as pd

CSV_ENDINGS = (".csv", ".csv.gz")
PARQUET_ENDINGS = (".parquet", ".pq")
MAX_CATEGORIES = 256


def read_table(path: Path) -> pd.DataFrame:
    """Return the table of a csv or parquet file.

    Raises:
        DataError: when the file cannot be read as what its name says, or has no row.
    """
    import pandas as pd

    try:
        frame = pd.read_parquet(path) if path.name.endswith(PARQUET_ENDINGS) else pd.read_csv(path)
    except (OSError, EOFError, ValueError) as error:  # pandas' and pyarrow's own errors are ValueErrors
        raise DataError(f"{path} cannot be read as a table: {error}") from error
    if frame.empty:
        raise DataError(f"{path} has no row")
    return frame


def table(train: Path, test: Path | None, label_column: str, *, site: bool = False) -> Source:
    """Return the rows of a training table and, if given, of its test table.

    Numeric columns are standardised by the training rows. A text column becomes one 0/1 column for each value
    among them; a value that only test rows have is all zeros. Every column but the label's is a feature: drop
    numbers of rows and the like before. For one site's file (`site`) text is refused, because sites that hold
    different values would build different columns, and the statistics are the site's own.

    Raises:
        DataError: names the column that is missing, empty in places, not finite, or of a kind that has no
        encoding.
    """
    import pandas as pd

    frame = read_table(train)
    label_column = label_column or "label"
    if label_column not in frame.columns:
        raise DataError(f"{train} has no column {label_column!r}: set label-column; {_columns(frame)}")
    train_count = None
    if test is not None:
        other = read_table(test)
        if set(other.columns) != set(frame.columns):
            differing = sorted(map(str, set(other.columns) ^ set(frame.columns)))
            raise DataError(f"{test} and {train} differ in columns: {', '.join(differing[:10])}")
        train_count = len(frame)
        frame = pd.concat([frame, other[frame.columns]], ignore_index=True)
    labels = frame.pop(label_column)
    if labels.isna().any():
        raise DataError(f"column {label_column!r}: {int(labels.isna().sum()):,} of {len(labels):,} labels are missing")
    if not len(frame.columns):
        raise DataError(f"{train} has no column but {label_column!r}")
    numbers = {str(name): is_numeric(frame[name]) for name in frame.columns}
    text = [name for name, numeric in numbers.items() if not numeric]
    if site and text:
        raise DataError(
            f"{train}: text in column {', '.join(map(repr, text[:10]))}; in a site's file encode "
            "text as numbers, the same way at every site"
        )

    def encode(train_rows: Rows) -> NDArray[np.float32]:
        blocks = [
            standardise(numeric_column(frame[name])[:, None], train_rows)
            if numbers[str(name)]
            else one_hot(frame[name], train_rows)
            for name in frame.columns
        ]
        return np.concatenate(blocks, axis=1, dtype=np.float32, casting="same_kind")

    return make_source(labels.to_numpy(), encode, train_count)


def is_numeric(column: pd.Series[Any]) -> bool:
    """Tell numbers (and booleans) from text.

    Raises:
        DataError: names a column that is neither, a date for one.
    """
    import pandas as pd

    kinds = pd.api.types
    if kinds.is_numeric_dtype(column.dtype) and not kinds.is_complex_dtype(column.dtype):
        return True
    if kinds.is_string_dtype(column.dtype) or isinstance(column.dtype, pd.CategoricalDtype):
        return False
    if kinds.is_object_dtype(column.dtype):
        return False
    raise DataError(f"column {str(column.name)!r} is of type {column.dtype}: encode it as numbers or text")


def numeric_column(column: pd.Series[Any]) -> NDArray[np.float64]:
    """Return a numeric column, (n,) float64.

    Raises:
        DataError: names a column with missing or infinite values, and says how many and where the first is.
    """
    values: NDArray[np.float64] = column.to_numpy(dtype=np.float64, na_value=np.nan)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise DataError(
            f"column {str(column.name)!r}: {len(bad):,} of {len(values):,} values are missing or not "
            f"finite, the first in row {bad[0] + 1:,}; fill or drop them"
        )
    return values


def one_hot(column: pd.Series[Any], train_rows: Rows) -> NDArray[np.float32]:
    """Return one 0/1 column for each value that occurs in `train_rows`, (n, values), values sorted.

    Raises:
        DataError: when a value is missing, or there are too many of them to be categories.
    """
    missing = int(column.isna().sum())
    if missing:
        raise DataError(
            f"column {str(column.name)!r}: {missing:,} of {len(column):,} values are missing; fill or drop it"
        )
    values = column.astype(str).to_numpy(dtype=object).astype(str)
    categories = np.unique(values[train_rows])
    if len(categories) > MAX_CATEGORIES:
        raise DataError(
            f"column {str(column.name)!r} is text with {len(categories):,} different values "
            f"(at most {MAX_CATEGORIES}): drop it or encode it as numbers"
        )
    encoded: NDArray[np.float32] = (values[:, None] == categories[None, :]).astype(np.float32)
    return encoded


def _columns(frame: pd.DataFrame) -> str:
    names = [str(name) for name in frame.columns]
    return f"columns: {', '.join(names[:30])}{', ...' if len(names) > 30 else ''}"
