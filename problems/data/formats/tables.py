"""Tables, csv or parquet: which columns are features, and what becomes of each."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64

from problems.data.agreement import Encoded
from problems.data.cells import as_text, is_number, texts, without_markers
from problems.data.formats.inspection import check_columns, is_index, kind_of
from problems.data.groups import number_groups
from problems.data.preprocessing import Feature, Preprocessing
from problems.data.repeats import warn_of_repeats
from problems.data.samples import Source, label_classes, make_source
from problems.data.spec import REST, Column, DataError, DataSpec, fill_in, parse_columns, parse_names

if TYPE_CHECKING:
    import pandas as pd

CSV_ENDINGS = (".csv", ".csv.gz")
PARQUET_ENDINGS = (".parquet", ".pq")
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}

_log = logging.getLogger(__name__)


def read_table(path: Path, words: Sequence[str] = (), **options: Any) -> "pd.DataFrame":
    """Return the table of a csv or parquet file.

    Args:
        path: of the file; its ending says which kind it is.
        words: names of columns whose cells are text in a csv, as they are written, also where they look like numbers.
        options: for `pandas.read_csv`, if the file has an unusual form.

    Raises:
        DataError: when the file cannot be read as the kind its name says, has no row, or has a column name twice.
    """
    import pandas as pd

    parquet, kinds = path.name.endswith(PARQUET_ENDINGS), None if options else dict.fromkeys(words, str)
    names: list[Any] = []
    try:
        if not parquet and not options:  # pandas renames duplicates
            names = pd.read_csv(path, header=None, nrows=1, dtype=str).iloc[0].dropna().tolist()
            if len(names) == 1:
                _check_separator(path, names)
        frame = _with_floats(pd.read_parquet(path)) if parquet else pd.read_csv(path, dtype=kinds, **options)
    except DataError:
        raise
    except UnicodeDecodeError as error:
        way_out = "save it as UTF-8 (spreadsheets: CSV UTF-8), or convert it: iconv -f latin1 -t utf-8"
        raise DataError(path, got="text that is not in UTF-8", allowed="UTF-8", hint=way_out) from error
    except (OSError, EOFError, ValueError) as error:  # pandas' and pyarrow's own errors are ValueErrors
        _check_separator(path, names)
        why = " ".join(str(error).split())
        got, way_out = f"a file that cannot be read as a table ({why})", "mend the file, or set dataset to its kind"
        raise DataError(path, got=got, allowed="named columns and a row a sample", hint=way_out) from error
    if not parquet and not options and not frame.index.equals(pd.RangeIndex(len(frame))):
        _check_separator(path, names)
        got, way_out = "rows of more cells than the first line names", "name every column, or end no line with a comma"
        raise DataError(path, got=got, allowed="a name for each cell", hint=way_out)
    if frame.empty:
        raise DataError(path, got="no row", allowed="names of columns and at least one row", hint="bring some")
    if twice := [repr(name) for name, times in Counter(names or frame.columns).items() if times > 1]:
        raise DataError(path, got=f"column {', '.join(twice)} more than once", allowed="once", hint="rename the others")
    return frame


def _check_separator(path: Path, names: Sequence[str]) -> None:
    """Refuse a csv whose first line has more of another separator than commas."""
    found = max(_SEPARATORS, key=lambda mark: sum(name.count(mark) for name in names))
    if sum(name.count(found) for name in names) >= max(len(names), 1):
        got = f"columns that are separated by {_SEPARATORS[found]}"
        raise DataError(path, got=got, allowed="commas", hint="write the table with commas, and numbers with points")


def _with_floats(frame: "pd.DataFrame") -> "pd.DataFrame":
    """A table in which columns of decimal numbers, a type of parquet, are floats."""
    import pandas as pd

    decimal = [name for name in frame if pd.api.types.infer_dtype(frame[name], skipna=True) == "decimal"]
    return frame.astype(dict.fromkeys(decimal, float))


def table(train: Path, test: Path | None, spec: DataSpec, *, site: bool = False) -> Source:
    """Return the rows of a training table and, if given, of its test table.

    A text column becomes one 0/1 column for each value in the training rows, or for each that ``feature-columns``
    lists; a value that only test rows have is all zeros.

    Args:
        train: the file of the training rows.
        test: the file of the test rows; None for none.
        spec: its keys for columns.
        site: whether it is one site's file. Without ``feature-columns`` the columns are then in order of their names,
            and text must be listed.

    Raises:
        DataError: names the column that is not there, or all that cannot be features; see `check_columns`.
    """
    words = [column.name for column in parse_columns(spec.feature_columns) if column.categories]
    words += [spec.group_column] * bool(spec.group_column)  # group 01 is not group 1
    frames = read_table(train, words), None if test is None else read_table(test, words)
    return from_frames(*frames, (train, test), spec, site=site)


def from_frames(
    frame: "pd.DataFrame",
    other: "pd.DataFrame | None",
    places: tuple[str | Path, str | Path | None],
    spec: DataSpec,
    *,
    site: bool = False,
) -> Source:
    """Return what `table` returns, of tables that are in memory.

    Args:
        frame: the training table.
        other: the test table; None for none.
        places: where the two come from, for errors.
        spec: as of `table`.
        site: as of `table`.

    Raises:
        DataError: as `table`.
    """
    import pandas as pd

    (train, test), label_column = places, spec.labels_in
    named, train_count, everything = parse_columns(spec.feature_columns), None, frame
    frame, counting = clean(frame, train, spec, site=site)
    if other is not None:
        assert test is not None
        other, _ = clean(other, test, spec, site=True)
        if not _only_some(spec) and set(other.columns) != set(frame.columns):
            differing = sorted(map(str, set(other.columns) ^ set(frame.columns)))
            got = f"other columns than {train}: {', '.join(differing[:10])}"
            raise DataError(test, got=got, allowed="the same", hint="set feature-columns or drop-columns")
        train_count = len(frame)
        shared = [name for name in frame.columns if name in other.columns]
        frame = pd.concat([frame[shared], other[shared]], ignore_index=True)
    files = train if other is None else f"{train} and {test}"

    def take(key: str, name: str) -> "pd.Series[Any]":
        if name not in frame.columns:
            raise DataError(key, got=repr(name), allowed=_columns(frame), hint=f"choose a column of {files}")
        return frame.pop(name)

    labels = take("label-column", label_column)
    place = f"column {spec.site_column!r}"
    sites = label_classes(take("site-column", spec.site_column).to_numpy(), place)[1] if spec.site_column else None
    groups = number_groups(take("group-column", spec.group_column)) if spec.group_column else None
    if not len(frame.columns):
        got = f"no column but {label_column!r}"
        raise DataError(train, got=got, allowed="one of features at least", hint="add columns of features")
    wanted = fill_in(named, sorted(frame.columns) if site else frame.columns)
    lacking = [column.name for column in wanted if column.name not in frame.columns]
    if lacking:
        got = f"no column {', '.join(map(repr, lacking[:10]))} of feature-columns"
        raise DataError(train, got=got, allowed=_columns(frame), hint="set feature-columns to some of these")
    missing, found = int(labels.isna().sum()), list[DataError]()
    if missing:
        got = f"{missing:,} of {len(labels):,} labels missing"
        found = [DataError(f"column {label_column!r}", got=got, allowed="none", hint="fill or drop them")]
    check_columns(frame, wanted, spec, found, train_count=train_count, site=site)
    if groups is None:
        _warn_of_repeats(everything, [column.name for column in wanted], (label_column, spec.site_column))
    if counting:
        _log.warning("left out column %r of %s, which counts rows and has no name", counting[0], files)
    encoder = lambda train_rows: encode(frame, wanted, train_rows, spec)  # noqa: E731
    return replace(make_source(labels.to_numpy(), encoder, train_count, sites), groups=groups)


def _warn_of_repeats(frame: "pd.DataFrame", features: Sequence[str], others: Sequence[str]) -> None:
    frame = frame.set_axis(frame.columns.map(str), axis="columns")
    warn_of_repeats(frame, [name for name in frame.columns if name not in (*features, *others)], features)


def clean(frame: "pd.DataFrame", place: str | Path, spec: DataSpec, *, site: bool) -> tuple["pd.DataFrame", list[str]]:
    """Return a table without the columns to be dropped, in which cells that mean missing are missing; and its index.

    Args:
        frame: the table.
        place: where it comes from, for errors.
        spec: its keys for columns.
        site: whether it is one site's or party's file, which may lack some of the columns to be dropped.

    Returns:
        The table, and the name of the dropped index in a list, which is empty where there was none; an index stays
        where only some columns are to be features.

    Raises:
        DataError: a column that is to be dropped is not there.
    """
    frame = frame.set_axis(frame.columns.map(str), axis="columns")
    dropped = [name for name in parse_names("drop-columns", spec.drop_columns) if name != spec.group_column]
    lacking = [repr(name) for name in dropped if name not in frame.columns]
    if lacking and not site:
        got, way_out = f"{', '.join(lacking[:10])}, which {place} has not", "leave it out"
        raise DataError("drop-columns", got=got, allowed=_columns(frame), hint=way_out)
    frame = frame.drop(columns=dropped, errors="ignore")
    counting = [name for name in frame.columns[:1] if not _only_some(spec) and is_index(frame[name])]
    markers = parse_names("missing-values", spec.missing_values)
    own = {spec.site_column: (), spec.group_column: (), spec.labels_in: _no_labels(markers, spec)}
    frame = frame.drop(columns=counting)
    for name in frame.columns:
        frame[name] = without_markers(frame[name], own.get(name, markers))
    return frame, counting


def _no_labels(markers: Sequence[str], spec: DataSpec) -> list[str]:
    """The markers of missing cells that are no labels: not those that `positive_label` names, and not -1, 0 and 1."""
    labels = {"-1", "0", "1", spec.positive_label, *map(str.strip, spec.positive_label.split(","))}
    return [marker for marker in markers if (as_text(float(marker)) if is_number(marker) else marker) not in labels]


def _only_some(spec: DataSpec) -> bool:
    """Whether only the columns that are named are features."""
    named = {column.name for column in parse_columns(spec.feature_columns)}
    return bool(named) and REST not in named


def encode(
    frame: "pd.DataFrame", columns: Sequence[Column], train_rows: Int64[np.ndarray, "train"], spec: DataSpec
) -> Encoded:
    """Return some columns of a table as numbers.

    Args:
        frame: the table.
        columns: which of its columns, in this order.
        train_rows: whose values make the features of a text column that lists none.
        spec: says how numbers are to be scaled.

    Raises:
        DataError: a column holds what it must not hold.
    """
    features = [feature for column in columns for feature in _features(frame[column.name], column, train_rows, spec)]
    preprocessing = Preprocessing(
        tuple(features),
        missing=spec.missing,  # type: ignore[arg-type]
        missing_values=parse_names("missing-values", spec.missing_values),
        scale=spec.scale,  # type: ignore[arg-type]
        label_column=spec.labels_in,
        bins=spec.bins,
    )
    return Encoded(preprocessing, preprocessing.encode(frame))


def _features(
    values: "pd.Series[Any]", column: Column, train_rows: Int64[np.ndarray, "train"], spec: DataSpec
) -> list[Feature]:
    """The features of one column, not yet fitted."""
    categories = column.categories
    if not categories:
        if kind := kind_of(values, spec):
            return [Feature(column.name, kind)]
        cells, missing = texts(values.iloc[train_rows])
        categories = tuple(np.unique(cells[~missing]).tolist())
        if not categories:
            got, allowed = "no cell in the training rows that is not missing", "some"
            raise DataError(f"column {column.name!r}", got=got, allowed=allowed, hint="name it in drop-columns")
        return [Feature(column.name, "category", value) for value in categories]
    return [Feature(column.name, "other" if value == REST else "category", value) for value in categories]


def _columns(frame: "pd.DataFrame") -> str:
    names = frame.columns.tolist()
    return f"one of {', '.join(names[:30])}{', ...' if len(names) > 30 else ''}"
