"""Readers of published image sets: IDX files (Fashion-MNIST) and STL-10's binary files. Pixels are uint8."""

from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from problems.data.formats.files import find_all, read_bytes
from problems.data.samples import Source, make_source
from problems.data.spec import DataError

FASHION_FILES = tuple(f"{split}-{part}-ubyte" for split in ("train", "t10k") for part in ("images-idx3", "labels-idx1"))
STL10_FILES = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")


def read_idx(path: Path) -> UInt8[np.ndarray, "..."]:
    """Return the array of an IDX file of bytes, plain or .gz.

    Raises:
        DataError: The file is of another kind, or incomplete.
    """
    content = read_bytes(path)
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        got = f"a file that starts with {content[:4].hex(' ')}"
        allowed = "an IDX file of bytes, which starts with 00 00 08"
        raise DataError(path, got=got, allowed=allowed, hint="download the file again")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], dtype=">u4"))
    expected = int(np.prod(shape, dtype=np.int64))
    if len(shape) != dimensions or len(content) - start != expected:
        got = f"a damaged file of {max(len(content) - start, 0):,} bytes"
        raise DataError(
            path, got=got, allowed=f"{expected:,} bytes, as its header announces", hint="download the file again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def fashion_mnist(root: Path) -> Source | None:
    """Return Fashion-MNIST from its IDX files in or below `root`; None if there are none.

    Raises:
        DataError: The files are damaged or do not belong together.
    """
    paths = find_all(root, [(name, f"{name}.gz", name.replace("-idx", ".idx")) for name in FASHION_FILES])
    if paths is None:
        return None
    images, labels, test_images, test_labels = map(read_idx, paths)
    for what, left, right in (("training", images, labels), ("test", test_images, test_labels)):
        if left.ndim != 3 or right.ndim != 1 or len(left) != len(right):
            got = f"{what} images {left.shape} and labels {right.shape}, which do not belong together"
            raise DataError(root, got=got, allowed="exactly one label per image", hint="download the files again")
    pixels = np.concatenate((images, test_images))[:, None]  # (n, 1, 28, 28)
    return make_source(np.concatenate((labels, test_labels)), pixels, train_count=len(labels))


def stl10(root: Path) -> Source | None:
    """Return STL-10's labelled images from its binary files in or below `root`; None if there are none.

    Raises:
        DataError: The files do not belong together.
    """
    paths = find_all(root, [(name,) for name in STL10_FILES])
    if paths is None:
        return None
    pixels, labels = [], []
    for images_path, labels_path in (paths[:2], paths[2:]):
        label = np.frombuffer(read_bytes(labels_path), dtype=np.uint8)
        raw = np.frombuffer(read_bytes(images_path), dtype=np.uint8)
        if len(raw) != len(label) * 3 * 96 * 96:
            got = f"{len(raw) / (3 * 96 * 96):g} images, and {len(label)} labels in {labels_path.name}"
            raise DataError(
                images_path, got=got, allowed="exactly one label per image", hint="unpack the archive again"
            )
        pixels.append(raw.reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2))  # stored column by column
        labels.append(label)
    return make_source(np.concatenate(labels), np.concatenate(pixels), train_count=len(labels[0]))
