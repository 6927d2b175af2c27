"""Folders of images: class folders to train on, and new images to score. Hidden files and folders are left out."""

import logging
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from problems.data.formats.files import homes
from problems.data.formats.pixels import read_images
from problems.data.samples import Source, make_source
from problems.data.spec import DataError

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
_SYSTEM = ("__MACOSX", "@eaDir", "$RECYCLE.BIN", "lost+found", "System Volume Information", "Thumbs.db", "desktop.ini")
_SHOWN = 8
_ARRANGE = "remove the folder, or move it elsewhere"

_log = logging.getLogger(__name__)


def class_folders(root: Path, *, bare: bool = True, bits: int = 0) -> Source | None:
    """Return the images of `train/<class>/` and, if there, `test/<class>/`.

    Files that are not taken are counted in one line of the log.

    Args:
        root: The folder of `train`, or the folder above it.
        bare: Whether, without a `train` folder, `root` itself may have the class folders.
        bits: The bits in use of images of more than 8 bits; see `read_images`.

    Returns:
        All images; None without class folders.

    Raises:
        DataError: Images differ in size, cannot be read, or a test class has no training images; or a class folder or
            `test` has no image.
    """
    for home in homes(root):
        if (home == root or not is_hidden(home)) and _classes(home / "train"):
            test = home / "test"
            return _read_folders(root, home / "train", test if test.is_dir() else None, bits)
    return _read_folders(root, root, None, bits) if bare and _classes(root) else None


def pictures(root: Path) -> tuple[list[Path], list[str] | None]:
    """Find new images: an image file, a folder of images, or class folders, which ``test`` or ``train`` may have.

    Returns:
        The files in the order of their names and, of class folders, each file's class.

    Raises:
        DataError: There is no image, or some lie beside class folders.
    """
    if root.is_file():
        return [root], None
    home = next((root / split for split in ("test", "train") if _classes(root / split)), root)
    classes, loose = _classes(home), _images(home)
    if bool(classes) == bool(loose):
        got = "images beside class folders" if loose else f"no images{_in_words(_count_others(home, ()))}"
        allowed = f"files {', '.join(IMAGE_ENDINGS)}, or class folders of such files"
        raise DataError(home, got=got, allowed=allowed, hint="arrange the images so")
    paths = loose or [path for folder in classes for path in _images(folder)]
    _report_others(home, paths)
    return paths, [path.parent.name for path in paths] if classes else None


def is_hidden(path: Path) -> bool:
    """Return whether an operating system, a notebook or an editor keeps a file or folder, rather than a user."""
    return path.name.startswith(".") or path.name in _SYSTEM


def count_files(root: Path) -> str:
    """Return how many files of which endings are in a folder, in words that begin with ", but "; "" without files."""
    return _in_words(_count_others(root, ()))


def _folders(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not is_hidden(entry))


def _classes(folder: Path) -> list[Path]:
    """The folders with images in a folder."""
    return [entry for entry in _folders(folder) if _images(entry)] if folder.is_dir() else []


def _images(folder: Path) -> list[Path]:
    entries = (entry for entry in folder.iterdir() if entry.suffix.lower() in IMAGE_ENDINGS)
    return sorted(entry for entry in entries if not is_hidden(entry) and entry.is_file())


def _read_folders(root: Path, train: Path, test: Path | None, bits: int) -> Source:
    splits = [_split(train), [] if test is None else _split(test)]
    training, held_out = splits
    paths = training + held_out
    labels = [path.parent.name for path in paths]
    unknown = set(labels[len(training) :]) - set(labels[: len(training)])
    if unknown:
        got = f"test classes without training images: {', '.join(sorted(unknown))}"
        allowed = "images of each class in train/ too"
        raise DataError(train.parent, got=got, allowed=allowed, hint="add them, or remove these classes")
    _report_others(root, paths)
    read = read_images(paths, bits=bits)
    return make_source(labels, read.pixels, len(training) if held_out else None, pixel_max=read.pixel_max)


def _split(folder: Path) -> list[Path]:
    """The images of the class folders in a folder.

    Raises:
        DataError: A class folder has none, or there is no class folder.
    """
    folders = _folders(folder)
    allowed = f"files {', '.join(IMAGE_ENDINGS)} in each class folder"
    for entry in folders:
        if not _images(entry):
            got = f"no image{_in_words(_count_others(entry, ()))}"
            raise DataError(entry, got=got, allowed=allowed, hint=_ARRANGE)
    if not folders:
        got = f"no class folder{_in_words(_count_others(folder, ()))}"
        raise DataError(folder, got=got, allowed=f"class folders with {allowed}", hint=_ARRANGE)
    return [path for entry in folders for path in _images(entry)]


def _count_others(root: Path, taken: Iterable[Path]) -> Counter[str]:
    """Count the files below a folder that are not taken, by ending and folder; all of a hidden folder together."""
    known, counts = set(taken), Counter[str]()
    for place, names, files in os.walk(root):
        folder = Path(place)
        hidden = [name for name in names if is_hidden(folder / name)]
        names[:] = [name for name in names if name not in hidden]
        here = f" in {folder.relative_to(root)}" if folder != root else ""
        for name in hidden:
            counts[f"hidden{here}/{name}" if here else f"hidden in {name}"] += sum(
                len(inner) for _, _, inner in os.walk(folder / name)
            )
        for path in (folder / name for name in files):
            if path not in known:
                counts[("hidden" if is_hidden(path) else path.suffix or "without ending") + here] += 1
    return counts


def _in_words(counts: Counter[str]) -> str:
    """The counts of files, in words that begin with ", but "; "" if there are none."""
    texts = [f"{count:,} {kind}" for kind, count in counts.most_common(_SHOWN) if count]
    more = f" and {sum(counts.values()) - sum(dict(counts.most_common(_SHOWN)).values()):,} in other folders"
    return f", but files {', '.join(texts)}{more if len(counts) > _SHOWN else ''}" if texts else ""


def _report_others(root: Path, taken: list[Path]) -> None:
    if words := _in_words(_count_others(root, taken)).removeprefix(", but files "):
        _log.warning("of the files in %s %d are taken as images; not taken: %s", root, len(taken), words)
