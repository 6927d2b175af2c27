"""Tables, csv or parquet: numbers are standardised, text becomes one column per value."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray

from problems.data.formats.inspection import check_columns, is_numeric, numeric_column
from problems.data.samples import Encoded, Source, as_text, label_classes, make_source
from problems.data.spec import Column, DataError, parse_columns

if TYPE_CHECKING:
    import pandas as pd

CSV_ENDINGS = (".csv", ".csv.gz")
PARQUET_ENDINGS = (".parquet", ".pq")


def read_table(path: Path, **options: Any) -> "pd.DataFrame":
    """Return the table of a csv or parquet file.

    Args:
        path: of the file; its ending says which kind it is.
        options: for `pandas.read_csv`, if the file has an unusual form.

    Raises:
        DataError: when the file cannot be read as the kind its name says, has no row, or has a column name twice.
    """
    import pandas as pd

    try:
        frame = pd.read_parquet(path) if path.name.endswith(PARQUET_ENDINGS) else pd.read_csv(path, **options)
        names = list(frame.columns)
        if not path.name.endswith(PARQUET_ENDINGS) and not options:  # pandas renames duplicates
            names = pd.read_csv(path, header=None, nrows=1, dtype=str).iloc[0].dropna().tolist()
    except (OSError, EOFError, ValueError) as error:  # pandas' and pyarrow's own errors are ValueErrors
        why = " ".join(str(error).split())
        got, way_out = f"a file that cannot be read as a table ({why})", "mend the file, or set dataset to its kind"
        raise DataError(path, got=got, allowed="named columns and a row a sample", hint=way_out) from error
    if frame.empty:
        raise DataError(path, got="no row", allowed="names of columns and at least one row", hint="bring some")
    if twice := [repr(name) for name, times in Counter(names).items() if times > 1]:
        raise DataError(path, got=f"column {', '.join(twice)} more than once", allowed="once", hint="rename the others")
    return frame


def table(
    train: Path,
    test: Path | None,
    label_column: str,
    site_column: str = "",
    feature_columns: str = "",
    *,
    scale: bool = True,
    site: bool = False,
) -> Source:
    """Return the rows of a training table and, if given, of its test table.

    Numeric columns are standardised by the training rows, if they are to be scaled. A text column becomes one 0/1
    column for each value in these rows, or for each that ``feature_columns`` lists; a value that only test rows have is
    all zeros.

    Args:
        train: the file of the training rows.
        test: the file of the test rows; None for none.
        label_column: the name of the labels' column.
        site_column: the name of the column with each row's site; "" for none.
        feature_columns: as of `DataSpec`; "" for every column but the label's and the site's.
        scale: whether numbers are standardised.
        site: whether it is one site's file. Without ``feature_columns`` the columns are then in order of their names,
            and text must be listed.

    Raises:
        DataError: names the column that is not there, or all that cannot be features; see `check_columns`.
    """
    import pandas as pd

    frame = read_table(train)
    wanted = parse_columns(feature_columns)
    train_count = None
    if test is not None:
        other = read_table(test)
        if not wanted and set(other.columns) != set(frame.columns):
            differing = sorted(map(str, set(other.columns) ^ set(frame.columns)))
            got = f"other columns than {train}: {', '.join(differing[:10])}"
            raise DataError(test, got=got, allowed="the same", hint="set feature-columns")
        train_count = len(frame)
        shared = [name for name in frame.columns if name in other.columns]
        frame = pd.concat([frame[shared], other[shared]], ignore_index=True)
    files = train if test is None else f"{train} and {test}"

    def take(key: str, name: str) -> "pd.Series[Any]":
        if name not in frame.columns:
            raise DataError(key, got=repr(name), allowed=_columns(frame), hint=f"choose a column of {files}")
        return frame.pop(name)

    labels = take("label-column", label_column)
    place = f"column {site_column!r}"
    sites = label_classes(take("site-column", site_column).to_numpy(), place)[1] if site_column else None
    if not len(frame.columns):
        got = f"no column but {label_column!r}"
        raise DataError(train, got=got, allowed="one of features at least", hint="add columns of features")
    if not wanted:
        names = [str(name) for name in frame.columns]
        wanted = tuple(Column(name) for name in (sorted(names) if site else names))
    frame.columns = frame.columns.map(str)
    lacking = [column.name for column in wanted if column.name not in frame.columns]
    if lacking:
        got = f"no column {', '.join(map(repr, lacking[:10]))} of feature-columns"
        raise DataError(train, got=got, allowed=_columns(frame), hint="set feature-columns to some of these")
    missing, found = int(labels.isna().sum()), list[DataError]()
    if missing:
        got = f"{missing:,} of {len(labels):,} labels missing"
        found = [DataError(f"column {label_column!r}", got=got, allowed="none", hint="fill or drop them")]
    check_columns(frame, wanted, found, site=site)
    return make_source(
        labels.to_numpy(),
        lambda train_rows: encode(frame, wanted, train_rows, scale=scale, site=site),
        train_count,
        sites,
    )


def encode(
    frame: "pd.DataFrame",
    columns: Sequence[Column],
    train_rows: Int64[np.ndarray, "train"],
    *,
    scale: bool = True,
    site: bool = False,
) -> Encoded:
    """Return some columns of a table as numbers.

    Args:
        frame: the table.
        columns: which of its columns, in this order.
        train_rows: whose values make the columns of a text column that lists none.
        scale: as of `table`.
        site: as of `table`.

    Raises:
        DataError: a column holds what it must not hold.
    """
    blocks, names, scaled = [], list[str](), list[bool]()
    for column in columns:
        values, categories = frame[column.name], column.categories
        numeric = not categories and is_numeric(values)
        if numeric:
            block = numeric_column(values)[:, None]
        elif categories:
            block = one_column_each(values, categories, site=site)
        else:
            block, categories = one_hot(values, train_rows)
        blocks.append(block)
        names += [f"{column.name}={value}" for value in categories] or [column.name]
        scaled += [scale and numeric] * block.shape[1]
    return Encoded(np.concatenate(blocks, axis=1), tuple(names), np.array(scaled))


def one_hot(
    column: "pd.Series[Any]", train_rows: Int64[np.ndarray, "train"]
) -> tuple[Float64[np.ndarray, "n values"], tuple[str, ...]]:
    """Return one 0/1 column for each value that occurs in `train_rows`, and the values, sorted."""
    values = _texts(column)
    categories = np.unique(values[train_rows])
    return (values[:, None] == categories).astype(np.float64), tuple(categories.tolist())


def one_column_each(
    column: "pd.Series[Any]", categories: Sequence[str], *, site: bool
) -> Float64[np.ndarray, "n {len(categories)}"]:
    """Return one 0/1 column for each of some values.

    Args:
        column: of text, or of numbers that are taken as text.
        categories: the values.
        site: whether it is one site's file.

    Raises:
        DataError: when a value of a site's file is not among them.
    """
    values = _texts(column)
    strange = np.flatnonzero(~np.isin(values, categories))
    if site and len(strange):
        foreign = f"{len(strange):,} of {len(values):,} values that are none of those in feature-columns"
        got, allowed = f"{foreign}, the first in row {strange[0] + 1:,}", ", ".join(categories)
        raise DataError(f"column {str(column.name)!r}", got=got, allowed=allowed, hint="list them in feature-columns")
    indicators: np.ndarray = (values[:, None] == np.array(categories)).astype(np.float64)
    return indicators


def _texts(column: "pd.Series[Any]") -> NDArray[np.str_]:
    write = as_text if is_numeric(column) else str
    return np.array([write(value) for value in column.to_numpy(dtype=object)], dtype=str)


def _columns(frame: "pd.DataFrame") -> str:
    names = [str(name) for name in frame.columns]
    return f"one of {', '.join(names[:30])}{', ...' if len(names) > 30 else ''}"
