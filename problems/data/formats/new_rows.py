"""Readers of new rows, which a trained model scores: a table, arrays, or a folder of images."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from problems.data.dialect import Dialect
from problems.data.formats import arrays, image_folders, tables
from problems.data.formats.image_tables import TABLE_ENDINGS, listed_images
from problems.data.formats.pixels import read_images
from problems.data.image_rows import ImageRows
from problems.data.sample_format import SampleFormat
from problems.data.spec import OWN, DataError, DataSpec

if TYPE_CHECKING:
    import pandas as pd

_ARRAYS = (*arrays.NPZ_ENDINGS, *arrays.SVMLIGHT_ENDINGS, *image_folders.IMAGE_ENDINGS)
_TABLES = (*tables.CSV_ENDINGS, *tables.PARQUET_ENDINGS)
# Data sets in svmlight text whose indices start at 1.
_FROM_ONE = ("a9a", "w8a")


@dataclass(frozen=True, eq=False)
class NewRows:
    """The rows of a file or folder, in its order.

    Attributes:
        features: A table with all its columns, or an array (n, *shape), not yet scaled; `ImageRows` of images that are
            larger than the cache.
        labels: The original labels (n,); None if the rows have no labels.
        files: The images' paths below the folder; None if the rows are not images.
    """

    features: "pd.DataFrame | NDArray[Any] | ImageRows"
    labels: NDArray[Any] | None
    files: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.features)


def read_table_rows(
    path: Path, label_column: str, words: Sequence[str] = (), dialect: Dialect | None = None
) -> NewRows:
    """Read the new rows of a table.

    Args:
        path: The file of a table.
        label_column: The name of the label column, which may be missing.
        words: See `problems.data.formats.tables.read_table`.
        dialect: See `problems.data.formats.tables.read_table`.

    Raises:
        DataError: The file is of another kind, or cannot be read.
    """
    _check_file(path, _TABLES, "since the run was trained on a table", tables.OPENED_ENDINGS)
    frame = tables.read_table(path, words, dialect)
    frame.columns = frame.columns.map(str)
    return NewRows(frame, frame[label_column].to_numpy() if label_column in frame.columns else None)


def read_array_rows(path: Path, form: SampleFormat, spec: DataSpec) -> NewRows:
    """Read new rows that are arrays or images. If the file or folder has a test split, only this split is read.

    Args:
        path: An npz or svmlight file, an image, a folder of images, a folder of class folders, or a table beside images
            if the training data were one.
        form: The format of the training samples.
        spec: The options of the training data.

    Raises:
        DataError: The path is of another kind, or cannot be read as samples of this shape.
    """
    shape = form.shape
    if spec.image_column and path.name.lower().endswith(TABLE_ENDINGS):
        files, named = listed_images(path, spec)
        names = tuple(os.path.relpath(file, path.parent) for file in files)
        return NewRows(_read_pixels(files, form, spec), named, names)
    if path.is_dir() or path.name.lower().endswith(image_folders.IMAGE_ENDINGS):
        paths, labels = image_folders.pictures(path, nested=bool(spec.group_column))
        pixels = _read_pixels(paths, form, spec)
        root = path if path.is_dir() else path.parent
        names = tuple(file.relative_to(root).as_posix() for file in paths)
        return NewRows(pixels, None if labels is None else np.array(labels), names)
    _check_file(path, _ARRAYS, "or a folder of images, since the run was trained on arrays")
    if path.name.lower().endswith(arrays.NPZ_ENDINGS):
        return NewRows(*arrays.npz_rows(path))
    if len(shape) != 1:
        got, allowed = "svmlight text, whose samples are vectors", f"samples of shape {shape}"
        raise DataError(path, got=got, allowed=allowed, hint="convert the samples to an npz file")
    from_one = bool(spec.feature_columns) or spec.dataset in _FROM_ONE or spec.partition == OWN
    return NewRows(*arrays.svmlight_rows(path, shape[0], from_one=from_one))


def _read_pixels(paths: list[Path], form: SampleFormat, spec: DataSpec) -> NDArray[Any] | ImageRows:
    channels = form.shape[0] if len(form.shape) == 3 and form.shape[0] in (1, 3) else 0
    options = {"cache": spec.image_cache, "workers": spec.read_workers}
    return read_images(paths, channels, like=form.pixel_max, size=form.image_size, **options).pixels


def _check_file(path: Path, endings: tuple[str, ...], since: str, opened: tuple[str, ...] = ()) -> None:
    if not path.is_file():
        raise DataError(repr(str(path)), got="no such file", allowed="an existing file", hint="correct the path")
    if not path.name.lower().endswith(opened or endings):
        allowed = f"a file {', '.join(endings)}, {since}"
        raise DataError(
            repr(str(path)), got="a file of another kind", allowed=allowed, hint="convert the file to an allowed kind"
        )
