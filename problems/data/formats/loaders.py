"""Reader of data that a user's function, the loader, returns: ``dataset = "package.module:loader"``."""

import inspect
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from problems.data.formats.arrays import Pair, check_pair, join
from problems.data.formats.frames import check_columns_alike, check_index, is_frame, is_series, read_frame, read_series
from problems.data.formats.pixels import pixels_of
from problems.data.groups import pop_groups
from problems.data.mapped import allocate
from problems.data.samples import Source
from problems.data.spec import LOADER_FORM, PAGE, DataError
from problems.importing import first_line, import_named

_SAMPLED, _READS = 8, 3  # the number of items of a Dataset that are read again, and the number of readings

_log = logging.getLogger(__name__)

_FORMS = "(X, y), (X, y, X_test, y_test), a torch Dataset, or two torch Datasets"
_LOADER = f"'{LOADER_FORM}', where loader(data_dir, seed) returns {_FORMS}"


def call_loader(path: str, data_dir: str, seed: int, *, site: bool = False, group_column: str = "") -> Source:
    """Call a loader and return its data.

    The loader gets ``data_dir`` and ``seed`` as keyword arguments, if its signature has them.

    Args:
        path: ``package.module:loader``.
        data_dir: The run's data folder, or the path of a site's own data.
        seed: The run's seed.
        site: Whether the data belong to one site. Its error messages are sent to the server, so they must not quote the
            loader's own error.
        group_column: The column that identifies groups; the features must then be data frames. "": no groups.

    Raises:
        DataError: The loader does not exist, fails, or returns neither arrays nor torch Datasets.
    """
    loader = _find(path)
    try:
        result = loader(**_choose_arguments(loader, {"data_dir": data_dir, "seed": seed}))
        halves = _halves(path, result)
        groups = None
        if group_column:
            halves, groups = pop_groups(path, halves, group_column)
        parts = [_pair_of(path, half) for half in halves]
        if len(halves) > 1 and not _is_dataset(halves[0]):
            check_columns_alike(f"the result of {path!r}", halves[0][0], halves[1][0])
    except DataError:
        raise
    except Exception as error:
        why = type(error).__name__ if site else first_line(error)
        raise _unfit(f"{path!r}, which failed ({why})") from error
    source = join(f"the result of {path!r}", parts[0], parts[1] if len(parts) > 1 else None)
    return replace(source, groups=groups)


def _unfit(got: str, allowed: str = _LOADER) -> DataError:
    return DataError("dataset", got=got, allowed=allowed, hint=f"correct the name or the loader, see {PAGE}")


def _find(path: str) -> Callable[..., Any]:
    loader = import_named(path, _unfit)
    if not callable(loader):
        raise _unfit(f"{path!r}, a {type(loader).__name__}, which is not callable")
    function: Callable[..., Any] = loader
    return function


def _choose_arguments(loader: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Select the keyword arguments that a function accepts."""
    parameters = inspect.signature(loader).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return arguments
    return {name: value for name, value in arguments.items() if name in parameters}


def _halves(path: str, result: Any) -> list[Any]:
    """Return the training data and, if there are any, the test data: each a torch Dataset or a pair of arrays."""
    if _is_dataset(result):
        return [result]
    if isinstance(result, tuple) and len(result) == 2 and all(map(_is_dataset, result)):
        return list(result)
    if isinstance(result, tuple | list) and len(result) in (2, 4):
        return [tuple(result[start : start + 2]) for start in range(0, len(result), 2)]
    many = f" of {len(result)}" if isinstance(result, tuple | list) else ""
    raise _unfit(f"{path!r}, which returned a {type(result).__name__}{many}", _FORMS)


def _warn_of_changes(path: str, dataset: Any) -> None:
    """Warn if a Dataset's items change when they are read again, for example by augmentation."""
    rows = np.linspace(0, len(dataset) - 1, min(len(dataset), _SAMPLED)).astype(int).tolist()
    reads = [[tuple(map(_array, dataset[row])) for row in rows] for _ in range(_READS)]
    changed = [
        any(not _equal(*arrays) for again in items[1:] for arrays in zip(items[0], again, strict=True))
        for items in zip(*reads, strict=True)
    ]
    if any(changed):
        words = (
            "dataset %r: %d of %d items differ when they are read again: each item is read once, and every round "
            "trains on the same numbers; return the samples without random changes, and set augment to change images"
        )
        _log.warning(words, path, sum(changed), len(rows))


def _equal(left: NDArray[Any], right: NDArray[Any]) -> bool:
    return np.array_equal(left, right, equal_nan=left.dtype.kind in "fc" and right.dtype.kind in "fc")


def _pair_of(path: str, half: Any) -> Pair:
    origin = f"the result of {path!r}"
    if _is_dataset(half):
        features, labels = _rows(path, half)
    else:
        check_index(origin, *half)
        features, labels = (read_frame(origin, half[0]) if is_frame(half[0]) else _array(half[0])), _labels(half[1])
    check_pair(origin, features, labels)
    return features, labels


def _labels(value: Any) -> NDArray[Any]:
    """Return labels as an array; a DataFrame with a single column counts as that column."""
    if is_frame(value) and value.shape[1] == 1:
        value = value.iloc[:, 0]
    return read_series(value) if is_series(value) else _array(value)


def _is_dataset(value: Any) -> bool:
    torch: Any = sys.modules.get("torch")  # a loader that returns its Dataset has imported it
    return torch is not None and isinstance(value, torch.utils.data.Dataset)


def _rows(path: str, dataset: Any) -> Pair:
    """Read a map-style Dataset item by item into an array: uint8 if the items are uint8, else float32."""
    if not hasattr(dataset, "__len__"):
        raise _unfit(f"{path!r}, whose Dataset has no length", "a map-style Dataset, with __len__ and __getitem__")
    features: NDArray[Any] = np.empty((0, 1))
    labels = []
    for row in range(len(dataset)):
        item = dataset[row]
        if not (isinstance(item, tuple | list) and len(item) == 2):
            got = f"{path!r}, whose item {row} is a {type(item).__name__}"
            raise _unfit(got, "(features, label) for each item")
        sample, label = _array(item[0]), _array(item[1])
        pixels = sample.dtype == np.uint8
        if row == 0:
            features = allocate((len(dataset), *sample.shape), np.uint8 if pixels else np.float32)
        if sample.shape != features.shape[1:] or pixels != (features.dtype == np.uint8):
            got = f"{path!r}, whose item {row} has {sample.shape} {sample.dtype} and item 0 {features.shape[1:]}"
            raise _unfit(f"{got} {features.dtype}", "features of equal shape and type")
        if sample.dtype.kind not in "biuf" or label.ndim > 1:
            got = f"{path!r}, whose item {row} is {sample.dtype} with a label of shape {label.shape}"
            raise _unfit(got, "numbers with one label, or one vector of labels, for each item")
        with np.errstate(over="ignore"):  # `check_finite` reports infinite numbers
            features[row] = sample
        labels.append(label if label.ndim else label.item())
    if labels:
        _warn_of_changes(path, dataset)
    return features, np.asarray(labels)


def _array(value: Any) -> NDArray[Any]:
    """Convert an array, a tensor, a list or a PIL image to an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    elif hasattr(value, "getbands"):
        return pixels_of(value)
    array: NDArray[Any] = np.asarray(value)
    return array
