"""Readers of folders of images: class folders to train on (a folder's name is the label), and new images to score.

Hidden files and folders are ignored.
"""

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from problems.data.formats.dicom import DICOM_ENDINGS
from problems.data.formats.files import homes
from problems.data.formats.pixels import read_set
from problems.data.formats.volumes import VOLUME_ENDINGS
from problems.data.groups import number_paths
from problems.data.samples import Source, make_source
from problems.data.spec import DataError, DataSpec

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".jp2", ".j2k", *DICOM_ENDINGS, *VOLUME_ENDINGS)
_SYSTEM = ("__MACOSX", "@eaDir", "$RECYCLE.BIN", "lost+found", "System Volume Information", "Thumbs.db", "desktop.ini")
_SHOWN = 8
_ARRANGE = "remove the folder, or move it elsewhere"

_log = logging.getLogger(__name__)


def class_folders(root: Path, spec: DataSpec, *, bare: bool = True) -> Source | None:
    """Return the images of `train/<class>/` and, if it exists, `test/<class>/`. A line of the log counts other files.

    Args:
        root: The folder that contains `train`, or the folder above that folder.
        spec: The options of an image-folder. With groups, folders below the class folders are read too.
        bare: Whether the class folders may be in `root`, without a `train` folder.

    Returns:
        All images; None without class folders.

    Raises:
        DataError: Images differ in size or cannot be read, a test class has no training images, or a class folder or
            `test` has no image.
    """
    nested = bool(spec.group_column)
    for home in homes(root):
        if (home == root or not is_hidden(home)) and _classes(home / "train", nested=nested):
            test = home / "test"
            return _read_folders(root, home / "train", test if test.is_dir() else None, spec)
    return _read_folders(root, root, None, spec) if bare and _classes(root, nested=nested) else None


def pictures(root: Path, *, nested: bool = False) -> tuple[list[Path], list[str] | None]:
    """Find new images: a single file, a folder of images, or class folders (in ``test``, ``train`` or ``root``).

    Args:
        root: The file or folder.
        nested: Whether class folders may contain further folders of images.

    Returns:
        The files in the order of their names, and each file's class if there are class folders.

    Raises:
        DataError: The folder has no images, or both images and class folders.
    """
    if root.is_file():
        return [root], None
    home = next((root / split for split in ("test", "train") if _classes(root / split, nested=nested)), root)
    classes, loose = _classes(home, nested=nested), _images(home)
    if bool(classes) == bool(loose):
        got = "images next to class folders" if loose else f"no images{_in_words(_count_others(home, ()))}"
        allowed = f"files {', '.join(IMAGE_ENDINGS)}, or class folders of such files"
        raise DataError(home, got=got, allowed=allowed, hint="move the images into class folders, or into one folder")
    paths = loose or [path for folder in classes for path in _images(folder, nested=nested)]
    report_others(home, paths)
    return paths, [path.relative_to(home).parts[0] for path in paths] if classes else None


def is_hidden(path: Path) -> bool:
    """Return whether a file or folder is hidden: an operating system, a notebook or an editor made it, not a user."""
    return path.name.startswith(".") or path.name in _SYSTEM


def count_files(root: Path) -> str:
    """Describe the numbers of files in a folder for an error: ", but files 3 .txt"; "" without files."""
    return _in_words(_count_others(root, ()))


def _folders(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not is_hidden(entry))


def _classes(folder: Path, *, nested: bool = False) -> list[Path]:
    """Return the folders with images in a folder, which are its class folders."""
    return [entry for entry in _folders(folder) if _images(entry, nested=nested)] if folder.is_dir() else []


def _images(folder: Path, *, nested: bool = False) -> list[Path]:
    """Return the images of a folder; if they may be nested, also of the folders below it."""
    entries = [entry for entry in folder.iterdir() if not is_hidden(entry)]
    images = [entry for entry in entries if entry.name.lower().endswith(IMAGE_ENDINGS) and entry.is_file()]
    below = [path for entry in entries if nested and entry.is_dir() for path in _images(entry, nested=True)]
    return sorted(images + below)


def _read_folders(root: Path, train: Path, test: Path | None, spec: DataSpec) -> Source:
    nested = bool(spec.group_column)
    training, held_out = _split(train, nested=nested), [] if test is None else _split(test, nested=nested)
    paths = [path for _, path in training + held_out]
    labels = [folder.name for folder, _ in training + held_out]
    unknown = set(labels[len(training) :]) - set(labels[: len(training)])
    if unknown:
        got = f"test classes without training images: {', '.join(sorted(unknown))}"
        allowed = "training images of each class"
        raise DataError(
            train.parent, got=got, allowed=allowed, hint="add training images, or remove these classes from test/"
        )
    report_others(root, paths)
    read = read_set(paths, spec)
    below = [path.relative_to(folder).as_posix() for folder, path in training + held_out]
    source = make_source(labels, read.pixels, len(training) if held_out else None, pixel_max=read.pixel_max)
    return replace(source, groups=number_paths(below, spec.group_column) if nested else None)


def _split(folder: Path, *, nested: bool = False) -> list[tuple[Path, Path]]:
    """Return the images of the class folders in a folder, each with its class folder.

    Raises:
        DataError: A class folder has no images, or there is no class folder.
    """
    folders = _folders(folder)
    allowed = f"files {', '.join(IMAGE_ENDINGS)} in each class folder"
    for entry in folders:
        if not _images(entry, nested=nested):
            got = f"no image{_in_words(_count_others(entry, ()))}"
            raise DataError(entry, got=got, allowed=allowed, hint=_ARRANGE)
    if not folders:
        got = f"no class folder{_in_words(_count_others(folder, ()))}"
        raise DataError(folder, got=got, allowed=f"class folders with {allowed}", hint=_ARRANGE)
    return [(entry, path) for entry in folders for path in _images(entry, nested=nested)]


def walk_files(root: Path) -> Iterator[Path]:
    """Yield the files below a folder, without the folders that `is_hidden` names."""
    for parent, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not is_hidden(Path(name)))
        yield from (Path(parent, name) for name in sorted(files))


def _count_others(root: Path, taken: Iterable[Path]) -> Counter[str]:
    """Count the ignored files below a folder by ending and folder. The files of a hidden folder are one entry."""
    known, counts = set(taken), Counter[str]()
    for parent, names, files in os.walk(root):
        folder = Path(parent)
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
    """Describe counts of files for an error: ", but files 3 .txt"; "" if there are none."""
    texts = [f"{count:,} {kind}" for kind, count in counts.most_common(_SHOWN) if count]
    more = f" and {sum(counts.values()) - sum(dict(counts.most_common(_SHOWN)).values()):,} in other folders"
    return f", but files {', '.join(texts)}{more if len(counts) > _SHOWN else ''}" if texts else ""


def report_others(root: Path, taken: list[Path], known: Iterable[Path] = ()) -> None:
    """Log the numbers of files in a folder that are not read.

    Args:
        root: The folder.
        taken: The images that are read.
        known: Further files that are read.
    """
    if words := _in_words(_count_others(root, [*taken, *known])).removeprefix(", but files "):
        _log.warning("of the files in %s %d are read as images; ignored: %s", root, len(taken), words)
