"""Reader of Hugging Face data sets: from the hub, from the hub's local cache, or from a folder."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64
from numpy.typing import NDArray

from problems.data.formats.arrays import check_pair, join
from problems.data.formats.pixels import channels_first, pixels_of
from problems.data.formats.tables import from_frames
from problems.data.groups import number_groups
from problems.data.mapped import allocate
from problems.data.samples import Source, make_source
from problems.data.spec import HUB, DataError, DataSpec, fill_in, parse_columns
from problems.data.subgroups import names_of
from problems.errors import install
from problems.importing import first_line

if TYPE_CHECKING:
    import pandas as pd

# Image sets on the hub: the name, the image column, the label column.
NAMED: dict[str, tuple[str, str, str]] = {
    "fashion-mnist": ("zalando-datasets/fashion_mnist", "image", "label"),
    "cifar10": ("uoft-cs/cifar10", "img", "label"),
    "cifar100": ("uoft-cs/cifar100", "img", "fine_label"),
    "stl10": ("tanganke/stl10", "image", "label"),
}
TRAIN, VALIDATION, TEST = "train", "validation", "test"
PROBE_SECONDS = 5.0
# the number of images or arrays that are read at a time
READ_ROWS = 128
# the files that `save_to_disk` writes into a folder
_SAVED = ("dataset_dict.json", "state.json")


def fetch(name: str) -> Source:
    """Return an image set in `NAMED` from the hub, or from the local cache if the hub is not reachable.

    Raises:
        DataError: The image set cannot be loaded; gives the reason in one line.
    """
    address, image, label = NAMED[name]
    data_set = _open(address)
    splits = [data_set[split] for split in (TRAIN, TEST)]
    pixels = [np.stack([channels_first(picture) for picture in split[image]]) for split in splits]
    labels = [np.asarray(split[label][:]) for split in splits]
    return make_source(np.concatenate(labels), np.concatenate(pixels), train_count=len(labels[0]))


def hugging_face(dataset: str, spec: DataSpec) -> Source:
    """Return the rows of a Hugging Face data set.

    The features are a single column of images or arrays, or a table of numbers and text. The splits "train" and
    "validation" are for training, "test" is for testing. A single split is for training.

    Args:
        dataset: ``hf:owner/name``, ``hf:owner/name:configuration``, or ``hf:`` and the path of a folder.
        spec: The options, with the keys for columns.

    Raises:
        DataError: The data set cannot be opened, lacks a split or a column, or its columns cannot be features.
    """
    train, test = _two_splits(_open(dataset.removeprefix(HUB)))
    label_column = spec.labels_in
    apart = list(dict.fromkeys(name for name in (label_column, spec.site_column, spec.group_column) if name))
    offered = [name for name in train.column_names if name not in apart]
    columns = [column.name for column in fill_in(parse_columns(spec.feature_columns), offered)]
    wanted = {"label-column": [label_column], "feature-columns": columns}
    wanted |= {"site-column": [spec.site_column][: len(spec.site_column)]}
    wanted |= {"group-column": [spec.group_column][: len(spec.group_column)]}
    for split in filter(None, (train, test)):
        for key, names in wanted.items():
            if lacking := [repr(name) for name in names if name not in split.column_names]:
                allowed = f"existing columns: {', '.join(split.column_names[:30])}"
                raise DataError(key, got=", ".join(lacking), allowed=allowed, hint="choose an existing column")
    arrays = [name for name in columns if not _is_scalar(train.features[name])]
    if not arrays:
        groups = [name for name in names_of(spec) if name in train.column_names and name not in (*columns, *apart)]
        frame, test_frame = (split and _frame(split, [*columns, *apart, *groups]) for split in (train, test))
        origins = f"split {TRAIN!r}", f"split {TEST!r}"
        return from_frames(frame, test_frame, origins, spec)
    if len(columns) > 1 or spec.site_column:
        got = f"{', '.join(columns)}, of which {arrays[0]!r} contains images or arrays"
        allowed = "a single column of images or arrays, without a site-column, or columns of numbers and text"
        hint = "set feature-columns to a single column, or to columns of numbers and text"
        raise DataError("feature-columns", got=got, allowed=allowed, hint=hint)
    held_out = test and _pair(test, arrays[0], label_column)
    source = join(f"column {arrays[0]!r}", _pair(train, arrays[0], label_column), held_out)
    return replace(source, groups=_groups([train, test], spec.group_column)) if spec.group_column else source


def _groups(splits: Sequence[Any], column: str) -> Int64[np.ndarray, "n"]:
    """Return the number of each row's group."""
    import pandas as pd

    return number_groups(pd.concat([_frame(split, [column])[column] for split in splits if split is not None]))


def _two_splits(splits: Any) -> tuple[Any, Any]:
    """Return the training rows and the test rows; None without test rows."""
    import datasets

    if isinstance(splits, datasets.Dataset):
        return splits, None
    train = splits.get(TRAIN) if len(splits) > 1 else next(iter(splits.values()))
    if train is None:
        raise DataError(
            "splits",
            got=", ".join(splits),
            allowed="a split 'train', or a single split",
            hint="save the data with a split 'train'",
        )
    if VALIDATION in splits and splits[VALIDATION] is not train:
        train = datasets.concatenate_datasets([train, splits[VALIDATION]])
    return train, None if splits.get(TEST) is train else splits.get(TEST)


def _is_scalar(feature: Any) -> bool:
    import datasets

    return isinstance(feature, datasets.Value | datasets.ClassLabel)


def _number_type(feature: Any) -> str:
    """Return the type of the numbers in a column of arrays, or of lists of lists."""
    while hasattr(feature, "feature"):
        feature = feature.feature
    return str(getattr(feature, "dtype", ""))


def _frame(split: Any, columns: Sequence[str]) -> "pd.DataFrame":
    """Return columns of numbers and text as a data frame; classes are names, not numbers."""
    frame: pd.DataFrame = split.select_columns(list(columns)).to_pandas()
    for name in columns:
        if hasattr(split.features[name], "names"):
            frame[name] = _class_names(split, name)
    return frame


def _class_names(split: Any, column: str) -> NDArray[Any]:
    """Return each row's class name; None for -1, which means a missing class on the hub."""
    names, codes = split.features[column].names, split[column][:]
    return np.array([None if code is None or code < 0 else names[code] for code in codes], dtype=object)


def _pair(split: Any, column: str, label: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return a column of images or of arrays, and the labels."""
    features = _rows(split, column)
    has_names = hasattr(split.features[label], "names")
    labels = _class_names(split, label) if has_names else np.asarray(split[label][:])
    check_pair(f"column {column!r}", features, labels)
    return features, labels


def _rows(split: Any, column: str) -> NDArray[Any]:
    """Return a column of images or arrays in a single array: uint8 for images and uint8 arrays, else float32."""
    import datasets

    origin, images = f"column {column!r}", isinstance(split.features[column], datasets.Image)
    # the library converts bytes to wider integers, so the column's declared type decides
    dtype = np.uint8 if images or _number_type(split.features[column]) == "uint8" else np.float32
    one_column = split.select_columns([column])
    features: NDArray[Any] = np.empty((0, 1), dtype)
    start = 0
    try:
        for read in (one_column if images else one_column.with_format("numpy")).iter(READ_ROWS):
            rows = [pixels_of(row) if images else np.asarray(row) for row in read[column]]
            if not start:
                features = allocate((len(split), *rows[0].shape), dtype)
            _check_rows(origin, rows, features.shape[1:])
            with np.errstate(over="ignore", invalid="raise"):  # `check_finite` reports infinite numbers
                features[start : start + len(rows)] = rows
            start += len(rows)
    except DataError:
        raise
    except (ValueError, FloatingPointError) as error:
        got = f"arrays with missing numbers or rows ({first_line(error)})"
        raise DataError(
            origin, got=got, allowed="arrays of equal shape", hint="fill the gaps, or drop the rows"
        ) from error
    return features


def _check_rows(origin: str, rows: Sequence[NDArray[Any]], shape: tuple[int, ...]) -> None:
    """Raise DataError if rows do not have the shape, or are not numbers."""
    for row in rows:
        if row.shape != shape:
            got, allowed = (
                f"rows of {shape} and {row.shape}",
                "equal shapes; for images, equal sizes and numbers of channels",
            )
            raise DataError(origin, got=got, allowed=allowed, hint="resize the rows")
        check_pair(origin, row[np.newaxis], None)


def _open(address: str) -> Any:
    """Open a data set.

    Args:
        address: A name on the hub, perhaps with a colon and the name of a configuration; or the path of a folder that
            `save_to_disk` has written or `load_dataset` can read.

    Returns:
        The splits by name, or a single split.

    Raises:
        DataError: The data set cannot be opened.
    """
    try:
        from datasets import load_dataset, load_from_disk
        from huggingface_hub import constants
    except ImportError as error:
        got = f"a package that is not usable ({error})"
        raise DataError(
            "Hugging Face's datasets", got=got, allowed="a working installation", hint=install("simulation")
        ) from None
    if address.startswith(("/", "~", ".")):
        path = Path(address).expanduser()
        try:
            if not path.is_absolute():
                raise ValueError("a relative path, but an app runs in a separate folder")
            saved = any((path / name).is_file() for name in _SAVED)
            return load_from_disk(str(path)) if saved else load_dataset(str(path))
        except Exception as error:  # the library raises many unrelated types
            allowed = "the absolute path of a data set that save_to_disk wrote, or that load_dataset reads"
            raise DataError(
                repr(address), got=first_line(error), allowed=allowed, hint="set dataset to hf: and the folder's path"
            ) from None
    online = not constants.HF_HUB_OFFLINE and _reachable(constants.ENDPOINT)
    name, _, configuration = address.partition(":")
    try:
        with _offline(not online):
            return load_dataset(name, configuration or None)
    except Exception as error:
        state = "a failure" if online else "no network and no local copy"
        raise DataError(
            "Hugging Face's datasets",
            got=f"{state} ({first_line(error)})",
            allowed="the hub, or a local copy",
            hint=f"save the data with save_to_disk, and set dataset to '{HUB}' and the folder's path",
        ) from None


def _reachable(address: str) -> bool:
    """Return whether an address answers within `PROBE_SECONDS`; the hub's own client would retry for minutes."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=PROBE_SECONDS):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False


@contextmanager
def _offline(wanted: bool) -> Iterator[None]:
    """Switch the hub's libraries to offline mode in a context, so a cached data set opens without waiting."""
    import datasets
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    if wanted:
        datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before
