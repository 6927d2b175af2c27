"""Reader of a table beside images: a column names each image's file, further columns its label, site and group."""

import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from problems.data.cells import is_number
from problems.data.dialect import Dialect
from problems.data.findings import read_matrix
from problems.data.formats.image_folders import is_hidden, report_others, walk_files
from problems.data.formats.pixels import read_set
from problems.data.formats.tables import CSV_ENDINGS, PARQUET_ENDINGS, clean, read_table
from problems.data.groups import number_groups
from problems.data.samples import Source, label_classes, make_source
from problems.data.spec import DataError, DataSpec
from problems.errors import join_first

if TYPE_CHECKING:
    import pandas as pd

TABLE_ENDINGS = (*CSV_ENDINGS, *PARQUET_ENDINGS)
_KEY = "image-column"
_SHOWN = 3

_log = logging.getLogger(__name__)


def image_table(train: Path, test: Path | None, spec: DataSpec) -> Source:
    """Return the images of a table, and perhaps of a second table with test rows.

    Args:
        train: The table of the training rows.
        test: The table of the test rows; None without test rows.
        spec: The options, with `image_column`.

    Raises:
        DataError: A column does not exist, files are missing or occur twice, or images cannot be read; see also
            `read_set`, `number_groups` and `label_classes`.
    """
    import pandas as pd

    keys = {"label-column": spec.labels_in, "site-column": spec.site_column, "group-column": spec.group_column}
    if spec.label_sources == spec.findings:
        del keys["label-column"]
    names = {key: name for key, name in keys.items() if name}
    tables = [path for path in (train, test) if path is not None]
    read = [_read(path, spec, names) for path in tables]
    paths = [path for _, files in read for path in files]
    if repeated := [path for path, count in Counter(paths).items() if count > 1]:
        got = f"{len(repeated):,} files in more than one row, such as {join_first([p.name for p in repeated], _SHOWN)}"
        raise DataError(_KEY, got=got, allowed="each file in one row", hint="remove the repeated rows")
    report_others(train.parent, paths, tables)

    def take(name: str) -> "pd.Series[Any]":
        return pd.concat([frame[name] for frame, _ in read], ignore_index=True)

    images = read_set(paths, spec)
    train_count = None if test is None else len(read[0][1])
    columns = list(map(take, spec.label_sources))
    labels = read_matrix(columns, spec) if spec.has_matrix else columns[0].to_numpy()
    source = make_source(labels, images.pixels, train_count, pixel_max=images.pixel_max)
    if spec.group_column:
        source = replace(source, groups=number_groups(take(spec.group_column)))
    if spec.site_column:
        values, sites = label_classes(take(spec.site_column).to_numpy(), f"column {spec.site_column!r}")
        site_names = tuple(f"{spec.site_column} {value}" if is_number(value) else value for value in values)
        source = replace(source, sites=sites, site_values=values, site_names=site_names)
    return source


def listed_images(path: Path, spec: DataSpec) -> tuple[list[Path], NDArray[Any] | None]:
    """Return the files of new images that a table lists, and their labels; None without a label column.

    Raises:
        DataError: See `image_table`. A file may be in several rows.
    """
    frame, files = _read(path, spec, {})
    report_others(path.parent, files, [path])
    names = spec.label_sources
    if not {*names} <= {*frame.columns}:
        return files, None
    if not spec.has_matrix:
        return files, frame[spec.labels_in].to_numpy()
    return files, read_matrix([frame[name] for name in names], spec)


def _read(path: Path, spec: DataSpec, names: dict[str, str]) -> tuple["pd.DataFrame", list[Path]]:
    """Return a table and the images' files, and log the ignored columns."""
    words = [spec.image_column, *([spec.group_column] if spec.group_column else [])]
    frame = clean(read_table(path, words, Dialect.of(spec)), path, spec, site=True)[0]
    findings = [("label-columns", name) for name in spec.findings if names and spec.label_sources == spec.findings]
    for key, name in [(_KEY, spec.image_column), *names.items(), *findings]:
        if name not in frame.columns:
            allowed = f"columns {join_first(frame.columns.tolist(), 30)}"
            raise DataError(key, got=repr(name), allowed=allowed, hint=f"choose a column of {path}")
    files = _find_files(path, frame[spec.image_column])
    used = {spec.image_column, *names.values(), *spec.label_sources}
    if ignored := [str(name) for name in frame.columns if name not in used]:
        _log.warning("%s: %d columns are ignored: %s", path, len(ignored), join_first(ignored, 10))
    return frame, files


def _find_files(table: Path, cells: "pd.Series[Any]") -> list[Path]:
    """Return the file of each row: the path from the table's folder, or the only file below it with this name.

    Raises:
        DataError: Cells are empty, files do not exist, or several files have a name.
    """
    if empty := int(cells.isna().sum()):
        got = f"{cells.name!r}, which is empty in {empty:,} of {len(cells):,} rows"
        raise DataError(_KEY, got=got, allowed="a file for each row", hint="fill the cells, or drop their rows")
    paths = [table.parent / str(cell) for cell in cells]
    if not (lost := [index for index, path in enumerate(paths) if not path.is_file()]):
        return paths
    below = dict[str, list[Path]]()
    for path in walk_files(table.parent):
        if not is_hidden(path):
            below.setdefault(path.name, []).append(path)
    faults: dict[str, list[str]] = {"do not exist": [], "have a name that several files have": []}
    for index in lost:
        matches = below.get(str(cells.iloc[index]), [])
        if len(matches) == 1:
            paths[index] = matches[0]
        else:
            faults["have a name that several files have" if matches else "do not exist"].append(str(cells.iloc[index]))
    texts = [
        f"{len(names):,} that {fault}, such as {join_first(names, _SHOWN)}" for fault, names in faults.items() if names
    ]
    if texts:
        got = f"{cells.name!r}: of {len(paths):,} files {' and '.join(texts)}"
        allowed = f"paths from {table.parent}, or names of single files below it"
        raise DataError(_KEY, got=got, allowed=allowed, hint="correct the paths, or add the files")
    return paths
