"""Search for a data set's files in `data-dir`, and reading of their bytes."""

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

from problems.data.spec import DataError


def folder(data_dir: str) -> Path:
    """Return the path of the folder `data_dir`.

    Raises:
        DataError: The folder does not exist, or is a file.
    """
    path = Path(data_dir).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        got, allowed, hint = "is a file", "a folder", "set data-dir to the folder of the data set's files"
    else:
        got, allowed, hint = "does not exist", "an existing file or folder", "set data-dir to an existing path"
    raise DataError("data-dir", got=f"{data_dir!r}, which {got}", allowed=allowed, hint=hint)


def homes(root: Path) -> list[Path]:
    """Return the folders that may contain a data set's files: `root` and the folders in it, sorted."""
    return [root, *sorted(path for path in root.iterdir() if path.is_dir())]


def find(root: Path, *names: str) -> Path | None:
    """Find a file.

    Args:
        root: The folder to search, including the folders in it.
        names: The possible names of the file, in order of preference.

    Returns:
        The first such file, or None.
    """
    paths = (home / name for home in homes(root) for name in names)
    return next((path for path in paths if path.is_file()), None)


def find_all(root: Path, files: Sequence[Sequence[str]]) -> list[Path] | None:
    """Find all files of a data set.

    Args:
        root: See `find`.
        files: The possible names of each file.

    Returns:
        The path of each file; None if any is missing.
    """
    paths = [path for path in (find(root, *names) for names in files) if path is not None]
    return paths if len(paths) == len(files) else None


def locate(dataset: str, data_dir: str, endings: Sequence[str]) -> tuple[Path, Path | None]:
    """Find a user's training file and test file.

    Args:
        dataset: The kind of the files, such as "csv", for the error.
        data_dir: The training file, a folder with `train.*` and perhaps `test.*`, or a folder with a single file.
        endings: The possible endings of the files' names.

    Returns:
        The training file, and the test file or None.

    Raises:
        DataError: No file fits, or several files fit; lists the endings and the folder's files.
    """
    path = Path(data_dir).expanduser()
    if path.is_file():
        return path, None
    root = folder(data_dir)
    files = (entry for entry in root.iterdir() if entry.is_file() and not entry.name.startswith("."))
    matches = sorted(entry for entry in files if entry.name.lower().endswith(tuple(endings)))
    by_split = {
        split: [entry for entry in matches if entry.name.split(".")[0].lower() == split] for split in ("train", "test")
    }
    if len(by_split["train"]) == 1 and len(by_split["test"]) <= 1:
        return by_split["train"][0], next(iter(by_split["test"]), None)
    if len(matches) == 1 and not by_split["test"]:
        return matches[0], None
    there = ", ".join(entry.name for entry in matches) or "no file"
    got, allowed = f"{there} in data-dir {data_dir!r}", f"a single file ({', '.join(endings)}), or train.* and test.*"
    raise DataError(f"dataset {dataset!r}", got=got, allowed=allowed, hint="set data-dir to the training file")


def read_bytes(path: Path) -> bytes:
    """Return a file's content, unpacked if its name ends in .gz.

    Raises:
        DataError: The file cannot be read, or does not have the format of its ending.
    """
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix.lower() == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        got, allowed = f"a file that cannot be read ({error})", "a complete file, packed if it ends in .gz"
        raise DataError(path, got=got, allowed=allowed, hint="download the file again") from error
