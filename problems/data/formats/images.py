"""Image readers: IDX files (Fashion-MNIST), STL-10's binary files, and folders of class folders.

Pixels stay uint8 until the samples are chosen.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from problems.data.formats.files import find_all, homes, read_bytes
from problems.data.groups import number_paths
from problems.data.samples import Source, make_source
from problems.data.spec import DataError

FASHION_FILES = tuple(f"{split}-{part}-ubyte" for split in ("train", "t10k") for part in ("images-idx3", "labels-idx1"))
STL10_FILES = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")
GREY = ("1", "L")  # PIL's modes
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")


def read_idx(path: Path) -> UInt8[np.ndarray, "..."]:
    """Return the array of an IDX file of bytes, plain or .gz.

    Raises:
        DataError: when it is not such a file or is cut short.
    """
    content = read_bytes(path)
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        got = f"a file that starts with {content[:4].hex(' ')}"
        allowed = "an IDX file of bytes, which starts with 00 00 08"
        raise DataError(path, got=got, allowed=allowed, hint="fetch it again")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], dtype=">u4"))
    expected = int(np.prod(shape, dtype=np.int64))
    if len(shape) != dimensions or len(content) - start != expected:
        got = f"a damaged file of {max(len(content) - start, 0):,} bytes"
        raise DataError(path, got=got, allowed=f"the {expected:,} bytes it announces", hint="fetch it again")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def fashion_mnist(root: Path) -> Source | None:
    """Return Fashion-MNIST from its IDX files in or below `root`; None when they are not there.

    Raises:
        DataError: the files are damaged or do not belong together.
    """
    paths = find_all(root, [(name, f"{name}.gz", name.replace("-idx", ".idx")) for name in FASHION_FILES])
    if paths is None:
        return None
    images, labels, test_images, test_labels = map(read_idx, paths)
    for what, left, right in (("training", images, labels), ("test", test_images, test_labels)):
        if left.ndim != 3 or right.ndim != 1 or len(left) != len(right):
            got = f"{what} images {left.shape} and labels {right.shape}, which do not belong together"
            raise DataError(root, got=got, allowed="one label an image", hint="fetch the files again")
    pixels = np.concatenate((images, test_images))[:, None]  # (n, 1, 28, 28)
    return make_source(np.concatenate((labels, test_labels)), pixels, train_count=len(labels))


def stl10(root: Path) -> Source | None:
    """Return STL-10's labelled images from its binary files in or below `root`; None if they are not there.

    Raises:
        DataError: the files do not belong together.
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
            raise DataError(images_path, got=got, allowed="one label an image", hint="unpack the archive again")
        pixels.append(raw.reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2))  # stored column by column
        labels.append(label)
    return make_source(np.concatenate(labels), np.concatenate(pixels), train_count=len(labels[0]))


def class_folders(root: Path, *, bare: bool = True, group_column: str = "") -> Source | None:
    """Return the images of `train/<class>/` and, if there, `test/<class>/`.

    Args:
        root: the folder of `train`, or the one above it.
        bare: whether without a `train` folder `root` itself may hold the class folders.
        group_column: as of `DataSpec`; if it is not empty, images in folders below the class folders are read too.

    Returns:
        All images; None when there is no class folder.

    Raises:
        DataError: when images differ in size, cannot be read, or a test class has no training images.
    """
    nested = bool(group_column)
    for home in homes(root):
        if _classes(home / "train", nested=nested):
            return _read_folders(home / "train", home / "test", group_column)
    return _read_folders(root, None, group_column) if bare and _classes(root, nested=nested) else None


def pictures(root: Path, *, nested: bool = False) -> tuple[list[Path], list[str] | None]:
    """Find new images: an image file, a folder of them, or class folders, which ``test`` or ``train`` may hold.

    Args:
        root: The file or folder.
        nested: Whether class folders may contain further folders of images.

    Returns:
        The files in the order of their names, and, of class folders, each one's class.

    Raises:
        DataError: there is no image, or some lie beside class folders.
    """
    if root.is_file():
        return [root], None
    splits = ("test", "train")
    home = next((root / split for split in splits if _classes(root / split, nested=nested)), root)
    classes, loose = _classes(home, nested=nested), _images(home)
    if bool(classes) == bool(loose):
        got = "images beside class folders" if loose else "no images"
        allowed = f"files {', '.join(IMAGE_ENDINGS)}, or class folders of them"
        raise DataError(home, got=got, allowed=allowed, hint="arrange the images so")
    paths = loose or [path for folder in classes for path in _images(folder, nested=nested)]
    return paths, [path.relative_to(home).parts[0] for path in paths] if classes else None


def _classes(folder: Path | None, *, nested: bool = False) -> list[Path]:
    if folder is None or not folder.is_dir():
        return []
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and _images(entry, nested=nested))


def _images(folder: Path, *, nested: bool = False) -> list[Path]:
    entries = folder.rglob("*") if nested else folder.iterdir()
    return sorted(entry for entry in entries if entry.suffix.lower() in IMAGE_ENDINGS)


def _read_folders(train: Path, test: Path | None, group_column: str = "") -> Source:
    nested = bool(group_column)
    training, held_out = (
        [(folder, path) for folder in _classes(split, nested=nested) for path in _images(folder, nested=nested)]
        for split in (train, test)
    )
    paths = [path for _, path in training + held_out]
    labels = [folder.name for folder, _ in training + held_out]
    unknown = set(labels[len(training) :]) - set(labels[: len(training)])
    if unknown:
        got = f"test classes without training images: {', '.join(sorted(unknown))}"
        allowed = "images of each class in train/ too"
        raise DataError(train.parent, got=got, allowed=allowed, hint="add them, or remove these classes")
    below = [path.relative_to(folder).as_posix() for folder, path in training + held_out]
    groups = number_paths(below, group_column) if group_column else None
    return replace(make_source(labels, read_images(paths), len(training) if held_out else None), groups=groups)


def read_images(paths: list[Path], channels: int = 0) -> UInt8[np.ndarray, "n channels height width"]:
    """Return images of one size.

    Args:
        paths: their files.
        channels: 1 for grey, 3 for colour, which grey images are turned into; 0: grey if all of them are.

    Raises:
        DataError: they differ in size, cannot be read, or are coloured where grey ones are wanted.
    """
    from PIL import Image, UnidentifiedImageError

    grey, sizes = True, dict[tuple[int, int], Path]()
    try:
        for path in paths:
            with Image.open(path) as image:
                grey &= image.mode in GREY
                sizes.setdefault(image.size, path)
        if len(sizes) > 1:
            (one, first), (other, second) = list(sizes.items())[:2]
            got = f"{first.name} of {one}, and {second} of {other}"
            raise DataError(f"images in {first.parent}", got=got, allowed="one size", hint="bring them to one size")
        if channels == 1 and not grey:
            got = "coloured images"
            raise DataError(paths[0].parent, got=got, allowed="grey ones, as in training", hint="convert them to grey")
        width, height = next(iter(sizes))
        pixels = np.empty((len(paths), channels or (1 if grey else 3), height, width), dtype=np.uint8)
        for index, path in enumerate(paths):
            with Image.open(path) as image:
                pixels[index] = channels_first(image.convert("L" if pixels.shape[1] == 1 else "RGB"))
    except (UnidentifiedImageError, OSError) as error:
        got = f"{path}, which cannot be read as an image ({error})"
        raise DataError(path.parent, got=got, allowed="a whole image", hint="replace it, or remove it") from error
    return pixels


def channels_first(picture: Any) -> UInt8[np.ndarray, "channels height width"]:
    """The pixels of a grey or coloured picture."""
    array = np.asarray(picture, dtype=np.uint8)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def pixels_of(picture: Any) -> UInt8[np.ndarray, "channels height width"]:
    """The pixels of a PIL image: grey if it is grey, else red, green and blue."""
    return channels_first(picture.convert("L" if picture.mode in GREY else "RGB"))
