"""Reader of CIFAR-10 and CIFAR-100, as pickles ("python version") or binary files from the data sets' page."""

import _codecs
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from problems.data.formats.files import homes, read_bytes
from problems.data.samples import Source, make_source
from problems.data.spec import DataError

IMAGE_BYTES = 3 * 32 * 32

# The names of the training files and, last, the test file (with the ending .bin for binary files); the labels' key in
# a pickle; the number of label bytes before an image in a binary file.
BATCHES: dict[str, tuple[tuple[str, ...], bytes, int]] = {
    "cifar10": ((*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"), b"labels", 1),
    "cifar100": (("train", "test"), b"fine_labels", 2),
}

# pixels and labels
Batch = tuple[UInt8[np.ndarray, "n 3072"], Int64[np.ndarray, "n"]]


class _ArraysOnly(pickle.Unpickler):
    """A safe unpickler: it loads containers, numbers, text and NumPy arrays, and no other object."""

    _allowed: dict[tuple[str, str], Any] = {  # noqa: RUF012 - never written to
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("_codecs", "encode"): _codecs.encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._allowed[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a CIFAR batch") from None


def cifar(name: str, root: Path) -> Source | None:
    """Return a data set from its files.

    Args:
        name: "cifar10", or "cifar100", whose fine labels are read.
        root: The folder of the files, or the folder above that folder.

    Returns:
        All rows; None if the folders contain no such file.

    Raises:
        DataError: A file is missing or damaged, or contains other objects than arrays.
    """
    names, key, label_bytes = BATCHES[name]
    for home in homes(root):
        for ending in ("", ".bin"):
            paths = [home / f"{name}{ending}" for name in names]
            if paths[0].is_file():
                _check_all_there(home, paths)
                return _join(
                    [_read_binary(path, label_bytes) if ending else _read_pickled(path, key) for path in paths]
                )
    return None


def _check_all_there(home: Path, paths: list[Path]) -> None:
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise _damage(home, f"a folder that lacks {', '.join(missing)}", "all files of the data set")


def _read_pickled(path: Path, key: bytes) -> Batch:
    try:
        batch = _ArraysOnly(io.BytesIO(read_bytes(path)), encoding="bytes").load()
        pixels, labels = np.asarray(batch[b"data"]), np.asarray(batch[key])
    except (pickle.UnpicklingError, LookupError, TypeError, ValueError, EOFError, AttributeError) as error:
        raise _damage(path, f"a file that is not a CIFAR batch ({error})", "arrays of data and labels") from error
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), IMAGE_BYTES):
        raise _damage(path, f"data {pixels.shape} {pixels.dtype}", f"({len(labels)}, {IMAGE_BYTES}) uint8")
    return pixels, labels.astype(np.int64)


def _read_binary(path: Path, label_bytes: int) -> Batch:
    content = np.frombuffer(read_bytes(path), dtype=np.uint8)
    record = label_bytes + IMAGE_BYTES
    if len(content) == 0 or len(content) % record:
        raise _damage(path, f"a damaged file of {len(content):,} bytes", f"a multiple of {record:,}")
    records = content.reshape(-1, record)
    return records[:, label_bytes:], records[:, label_bytes - 1].astype(np.int64)  # the fine label is the last


def _damage(path: Path, got: str, allowed: str) -> DataError:
    return DataError(path, got=got, allowed=allowed, hint="unpack the archive again")


def _join(batches: list[Batch]) -> Source:
    pixels = np.concatenate([pixels for pixels, _ in batches]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([labels for _, labels in batches])
    return make_source(labels, pixels, train_count=len(labels) - len(batches[-1][1]))
