"""Reader of tables (csv, parquet or a workbook): checks the columns, and encodes the features as numbers."""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64

from problems.data.agreement import Encoded
from problems.data.borders import check_bordered, parse_borders
from problems.data.cells import as_text, is_number, name_cells, texts, without_markers
from problems.data.dialect import PLAIN, Dialect
from problems.data.findings import read_matrix
from problems.data.formats.column_types import POINTS_BETWEEN_THOUSANDS, distinct_cells, is_text
from problems.data.formats.containers import Contents, open_table
from problems.data.formats.csv_text import read_cells, read_text
from problems.data.formats.inspection import check_columns, is_index, kind_of
from problems.data.formats.workbooks import as_text_table
from problems.data.groups import number_groups
from problems.data.markers import Markers, check_names, describe_hits, parse_markers
from problems.data.outcomes import find_faults, read_numbers
from problems.data.preprocessing import Feature, Preprocessing
from problems.data.repeats import warn_of_repeats
from problems.data.samples import Source, add_subgroups, label_classes, make_source, number_source
from problems.data.spec import REST, Column, DataError, DataSpec, fill_in, parse_columns, parse_names
from problems.data.times import parse_time_borders, read_times
from problems.errors import join_first

if TYPE_CHECKING:
    import pandas as pd

CSV_ENDINGS = (".csv", ".csv.gz", ".csv.zip", ".tsv", ".tsv.gz", ".tsv.zip", ".xlsx", ".xlsm")
PARQUET_ENDINGS = (".parquet", ".pq")
# Files with these endings may be tables, too. The first bytes of such a file determine its kind.
_OTHER_ENDINGS = (".txt", ".tab", ".dat", ".data", ".gz", ".zip", ".xls", ".xlsb", ".ods", ".sav", ".dta", ".sas7bdat")
OPENED_ENDINGS = (*CSV_ENDINGS, *PARQUET_ENDINGS, *_OTHER_ENDINGS)

_log = logging.getLogger(__name__)


def read_table(path: Path, words: Sequence[str] = (), dialect: Dialect | None = None) -> "pd.DataFrame":
    """Return the table in a csv file, a parquet file or a workbook. The file's first bytes determine its kind.

    Args:
        path: The file.
        words: The columns of a csv whose cells stay text, even if they look like numbers.
        dialect: The dialect of a csv. None: it is guessed.

    Raises:
        DataError: The file cannot be read, has no row, or has a column name twice.
    """
    contents = _open(path)
    if contents.kind == "parquet":
        frame = _read_parquet(contents)
    else:
        frame = read_text(as_text_table(contents), words, _dialect_of(contents, dialect))
    if frame.empty:
        got, allowed = "no row", "names of columns and at least one row"
        raise DataError(path, got=got, allowed=allowed, hint="choose a file with rows")
    if twice := [repr(name) for name, times in Counter(frame.columns).items() if times > 1]:
        raise DataError(
            path,
            got=f"column {', '.join(twice)} more than once",
            allowed="different names",
            hint="rename the repeated columns",
        )
    return frame


def read_columns(path: Path, names: Sequence[str], dialect: Dialect | None = None) -> "pd.DataFrame":
    """Return columns of a table without conversion: the cells of a csv are texts, "" for an empty cell.

    Args:
        path: See `read_table`.
        names: The columns.
        dialect: See `read_table`.

    Raises:
        DataError: See `read_table`.
    """
    contents = _open(path)
    if contents.kind == "parquet":
        return _read_parquet(contents)[list(names)]
    return read_cells(as_text_table(contents), names, _dialect_of(contents, dialect))


def _open(path: Path) -> Contents:
    """Open a table's file; a file that ends in .parquet or .pq must be parquet."""
    contents = open_table(path)
    if contents.kind != "parquet" and path.name.lower().endswith(PARQUET_ENDINGS):
        got = "a file that cannot be read as a table, since it is not parquet"
        hint = "write the file again, or rename it with the ending of its kind, such as .csv"
        raise DataError(path, got=got, allowed="a parquet file", hint=hint)
    return contents


def _dialect_of(contents: Contents, dialect: Dialect | None) -> Dialect:
    """Return the dialect of a table; a workbook has the plain dialect, since the reader has converted it to csv."""
    return PLAIN if contents.kind == "workbook" else dialect or Dialect()


def _read_parquet(contents: Contents) -> "pd.DataFrame":
    import pandas as pd

    try:
        with contents.open() as stream:
            return _with_floats(pd.read_parquet(stream))
    except (OSError, EOFError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        got = f"a file that cannot be read as a table ({' '.join(str(error).split())})"
        raise DataError(
            contents.path, got=got, allowed="a complete parquet file", hint="write the file again"
        ) from error


def _with_floats(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Convert columns of parquet's type "decimal" to floats."""
    import pandas as pd

    decimal = [name for name in frame if pd.api.types.infer_dtype(frame[name], skipna=True) == "decimal"]
    return frame.astype(dict.fromkeys(decimal, float))


def table(train: Path, test: Path | None, spec: DataSpec, *, site: bool = False) -> Source:
    """Return the rows of a training table and perhaps of a test table.

    A text column becomes a 0/1 feature for each value in the training rows, or for each value that ``feature-columns``
    lists. For a value that occurs only in test rows all these features are 0.

    Args:
        train: The file of the training rows.
        test: The file of the test rows; None without test rows.
        spec: The options, with the keys for columns.
        site: Whether the file belongs to a single site. Columns are then in the order of their names, unless
            ``feature-columns`` lists them, and the values of text columns must be listed.

    Raises:
        DataError: A column does not exist, or columns cannot be features; lists all such columns. See `check_columns`.
    """
    words = [column.name for column in parse_columns(spec.feature_columns) if column.categories]
    words += [spec.group_column] * bool(spec.group_column)  # group 01 is not group 1
    dialect = Dialect.of(spec)
    frame, test_frame = read_table(train, words, dialect), None if test is None else read_table(test, words, dialect)
    if test_frame is not None and test is not None:
        # a column that is text in only one of the files is read as text in both
        both = [name for name in frame.columns if name in test_frame.columns]
        if words_of := [name for name in both if is_text(frame[name]) != is_text(test_frame[name])]:
            frame, test_frame = (read_table(path, [*words, *words_of], dialect) for path in (train, test))
    return from_frames(frame, test_frame, (train, test), spec, site=site)


def from_frames(
    frame: "pd.DataFrame",
    test_frame: "pd.DataFrame | None",
    origins: tuple[str | Path, str | Path | None],
    spec: DataSpec,
    *,
    site: bool = False,
) -> Source:
    """Return the rows of tables in memory, like `table`.

    Args:
        frame: The training table.
        test_frame: The test table; None without a test table.
        origins: The names of both tables, for errors.
        spec: See `table`.
        site: See `table`.

    Raises:
        DataError: See `table`.
    """
    (train, test), label_column = origins, spec.labels_in
    listed, everything = parse_columns(spec.feature_columns), frame
    frames = [frame] if test_frame is None else [frame, test_frame]
    frame, counting, hits = clean(frame, train, spec, site=site)
    files, train_count = train, None
    if test_frame is not None:
        assert test is not None
        test_frame, _, test_hits = clean(test_frame, test, spec, site=True)
        hits.update(test_hits)
        files, train_count = f"{train} and {test}", len(frame)
        frame = _append(frame, test_frame, (train, test), spec)

    def take(key: str, name: str) -> "pd.Series[Any]":
        if name not in frame.columns:
            raise DataError(key, got=repr(name), allowed=_columns(frame), hint=f"choose a column of {files}")
        return frame.pop(name)

    key = "label-columns" if spec.label_sources == spec.findings else "label-column"
    labels, *further = (take(key, name) for name in spec.label_sources)
    offsets = take("offset-column", spec.offset_column) if spec.offset_column else None
    ends = take("time-column", spec.time_column) if spec.time_column else None
    starts = take("entry-column", spec.entry_column) if spec.entry_column else None
    site_name = f"column {spec.site_column!r}"
    site_values, sites = tuple[str, ...](), None
    if spec.site_column:
        site_values, sites = label_classes(take("site-column", spec.site_column).to_numpy(), site_name)
    groups = number_groups(take("group-column", spec.group_column)) if spec.group_column else None
    if not len(frame.columns):
        got = f"no column except {', '.join(map(repr, spec.label_sources))}"
        raise DataError(train, got=got, allowed="at least a column of features", hint="add columns of features")
    wanted = fill_in(listed, sorted(frame.columns) if site else frame.columns)
    lacking = [column.name for column in wanted if column.name not in frame.columns]
    if lacking:
        got = f"no column {', '.join(map(repr, lacking[:10]))} of feature-columns"
        raise DataError(train, got=got, allowed=_columns(frame), hint="set feature-columns to existing columns")
    faults = find_faults(labels, label=True) if spec.has_numbers else []
    faults += [] if spec.has_numbers or spec.has_matrix else _find_missing_labels(labels, label_column)
    faults += [fault for column in (offsets, ends, starts) if column is not None for fault in find_faults(column)]
    check_columns(frame, wanted, spec, faults, train_count=train_count, site=site)
    if groups is None:
        _warn_of_repeats(
            everything,
            [column.name for column in wanted],
            (
                *spec.label_sources,
                *(spec.site_column, spec.offset_column, spec.time_column, spec.entry_column),
            ),
        )
    if counting:
        _log.warning("ignored column %r of %s, which counts rows and has no name", counting[0], files)
    encoder = lambda train_rows: encode(frame, wanted, train_rows, spec)  # noqa: E731
    notes = tuple(describe_hits(parse_markers(spec.missing_values), hits, len(frame)))
    if spec.has_matrix:
        source = make_source(read_matrix([labels, *further], spec), encoder, train_count, sites)
    elif spec.has_numbers:
        source = number_source(read_numbers(labels), encoder, train_count, sites)
    else:
        source = make_source(labels.to_numpy(), encoder, train_count, sites)
    if offsets is not None:
        source = replace(source, offsets=read_numbers(offsets))
    if ends is not None:
        source = replace(source, times=read_times(ends, starts))
    site_names = tuple(f"{spec.site_column} {value}" if is_number(value) else value for value in site_values)
    source = replace(source, groups=groups, notes=notes, site_values=site_values, site_names=site_names)
    return add_subgroups(source, spec, frames)


def _append(
    frame: "pd.DataFrame", test_frame: "pd.DataFrame", origins: tuple[str | Path, str | Path], spec: DataSpec
) -> "pd.DataFrame":
    """Append test rows to training rows.

    Raises:
        DataError: The tables have different columns, although ``feature-columns`` does not list all features.
    """
    import pandas as pd

    train, test = origins
    if not _only_some(spec) and set(test_frame.columns) != set(frame.columns):
        differing = sorted(map(str, set(test_frame.columns) ^ set(frame.columns)))
        got = f"other columns than {train}: {', '.join(differing[:10])}"
        hint = "list the common columns in feature-columns, or the other columns in drop-columns"
        raise DataError(test, got=got, allowed=f"the columns of {train}", hint=hint)
    shared = [name for name in frame.columns if name in test_frame.columns]
    return pd.concat([frame[shared], test_frame[shared]], ignore_index=True)


def _find_missing_labels(labels: "pd.Series[Any]", column: str) -> list[DataError]:
    """Return an error about missing labels, in a list; an empty list if no label is missing."""
    missing = int(labels.isna().sum())
    if not missing:
        return []
    got, hint = f"{missing:,} of {len(labels):,} labels missing", "fill the missing labels, or drop their rows"
    return [DataError(f"column {column!r}", got=got, allowed="no missing values", hint=hint)]


def _warn_of_repeats(frame: "pd.DataFrame", features: Sequence[str], excluded: Sequence[str]) -> None:
    frame = frame.set_axis(frame.columns.map(str), axis="columns")
    warn_of_repeats(frame, [name for name in frame.columns if name not in (*features, *excluded)], features)


def clean(
    frame: "pd.DataFrame", origin: str | Path, spec: DataSpec, *, site: bool
) -> tuple["pd.DataFrame", list[str], Counter[str]]:
    """Prepare a table: drop the index and the columns in ``drop-columns``, and make cells that equal a marker missing.

    Args:
        frame: The table.
        origin: The table's name, for errors.
        spec: The options, with the keys for columns.
        site: Whether the file belongs to a single site or party, and may lack columns of ``drop-columns``.

    Returns:
        The table; the name of the dropped index in a list, which is empty if no index was dropped; and for each column
        the number of cells that a marker made missing. An index is not dropped if ``feature-columns`` lists all
        features.

    Raises:
        DataError: A column in ``drop-columns`` or ``missing-values`` does not exist.
    """
    frame = frame.set_axis(frame.columns.map(str), axis="columns")
    dropped = [name for name in parse_names("drop-columns", spec.drop_columns) if name != spec.group_column]
    lacking = [repr(name) for name in dropped if name not in frame.columns]
    if lacking and not site:
        got, hint = f"{', '.join(lacking[:10])}, which {origin} lacks", "remove the absent columns from drop-columns"
        raise DataError("drop-columns", got=got, allowed=_columns(frame), hint=hint)
    markers, hits = parse_markers(spec.missing_values), Counter[str]()
    if not site:
        check_names(markers, frame.columns, origin)
    frame = frame.drop(columns=dropped, errors="ignore")
    counting = [name for name in frame.columns[:1] if not _only_some(spec) and is_index(frame[name])]
    specific = Markers(by_column=markers.by_column)
    own = {
        spec.site_column: specific.of(spec.site_column),
        spec.group_column: specific.of(spec.group_column),
        spec.labels_in: (*_no_labels(markers.everywhere, spec), *specific.of(spec.labels_in)),
    }
    frame = frame.drop(columns=counting)
    for name in frame.columns:
        column = frame[name] = without_markers(frame[name], ())
        if marked := own.get(name, markers.of(name)):
            frame[name] = without_markers(column, marked)
            hits[name] += int(frame[name].isna().sum() - column.isna().sum())
    return frame, counting, hits


def _no_labels(markers: Sequence[str], spec: DataSpec) -> list[str]:
    """Return the markers that cannot be labels: neither values of `positive_label`, nor -1, 0 or 1."""
    labels = {"-1", "0", "1", spec.positive_label, *map(str.strip, spec.positive_label.split(","))}
    return [marker for marker in markers if (as_text(float(marker)) if is_number(marker) else marker) not in labels]


def _only_some(spec: DataSpec) -> bool:
    """Return whether only the columns in ``feature-columns`` are features."""
    listed = {column.name for column in parse_columns(spec.feature_columns)}
    return bool(listed) and REST not in listed


def encode(
    frame: "pd.DataFrame", columns: Sequence[Column], train_rows: Int64[np.ndarray, "train"], spec: DataSpec
) -> Encoded:
    """Encode columns of a table as numbers.

    Args:
        frame: The table.
        columns: The columns to encode, in this order.
        train_rows: The training rows: their values become the features of a text column without listed values.
        spec: The options, which determine the scaling.

    Raises:
        DataError: A column contains values that are not allowed.
    """
    features = [feature for column in columns for feature in _features(frame[column.name], column, train_rows, spec)]
    markers = parse_markers(spec.missing_values)
    preprocessing = Preprocessing(
        tuple(features),
        missing=spec.missing,  # type: ignore[arg-type]
        missing_values=markers.everywhere,
        column_markers=markers.by_column,
        scale=spec.scale,  # type: ignore[arg-type]
        label_column=spec.labels_in,
        bins=spec.bins,
        label_type=spec.label_type,  # type: ignore[arg-type]
        offset_column=spec.offset_column,
        time_column=spec.time_column,
        entry_column=spec.entry_column,
        time_borders=parse_time_borders(spec.time_borders),
        borders=parse_borders(spec.borders),
    )
    numeric = [feature.column for feature in features if feature.kind in ("number", "date", "empty")]
    check_bordered(preprocessing.borders, numeric)
    return Encoded(preprocessing, preprocessing.encode(frame))


def _features(
    values: "pd.Series[Any]", column: Column, train_rows: Int64[np.ndarray, "train"], spec: DataSpec
) -> list[Feature]:
    """Return the features of a column, not yet fitted."""
    categories = column.categories
    if is_text(values) and distinct_cells(values).str.contains(r"[\r\n]", regex=True).any():
        breaks = values.str.contains(r"[\r\n]", regex=True, na=False).to_numpy()
        got, hint = name_cells(breaks, "with line breaks"), "look for stray quotes, or list the column in drop-columns"
        raise DataError(f"column {column.name!r}", got=got, allowed="cells of one line", hint=hint)
    if not categories:
        if kind := kind_of(values, spec):
            return [Feature(column.name, kind)]
        cells, missing = texts(values.iloc[train_rows])
        categories = tuple(np.unique(cells[~missing]).tolist())
        if not categories:
            got, allowed = "missing cells only in the training rows", "columns with cells"
            raise DataError(f"column {column.name!r}", got=got, allowed=allowed, hint="list the column in drop-columns")
        grouped = all(re.fullmatch(POINTS_BETWEEN_THOUSANDS, value) for value in categories)
        if grouped and any(re.search(r"\..*[.,]", value) for value in categories):
            got, hint = "numbers with points between thousands", "write 1.234,5 as 1234,5"
            raise DataError(
                f"column {column.name!r}", got=got, allowed="numbers without points between thousands", hint=hint
            )
        return [Feature(column.name, "category", value) for value in categories]
    return [Feature(column.name, "other" if value == REST else "category", value) for value in categories]


def _columns(frame: "pd.DataFrame") -> str:
    names = frame.columns.tolist()
    return f"columns {join_first(names, 30)}"
