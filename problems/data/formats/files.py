"""Finding a data set's files, and saying what was looked for when they are not there."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

from problems.data.spec import DataError

WHERE: dict[str, str] = {
    "fashion-mnist": "the four .gz files of github.com/zalandoresearch/fashion-mnist (data/fashion)",
    "cifar10": "cifar-10-python.tar.gz, unpacked, of www.cs.toronto.edu/~kriz/cifar.html",
    "cifar100": "cifar-100-python.tar.gz, unpacked, of www.cs.toronto.edu/~kriz/cifar.html",
    "stl10": "stl10_binary.tar.gz, unpacked, of cs.stanford.edu/~acoates/stl10",
    "uci-credit": "UCI_Credit_Card.csv, the Kaggle form of UCI's 'Default of Credit Card Clients'",
    "heart-disease": "the four processed.*.data of UCI's 'Heart Disease'",
    "w8a": "the file w8a of LIBSVM's page of binary data sets",
}


def folder(data_dir: str) -> Path:
    """Return `data_dir` as an existing folder.

    Raises:
        DataError: when it does not exist or is a file.
    """
    path = Path(data_dir).expanduser()
    if not path.exists():
        raise DataError(
            "data-dir",
            got=f"{data_dir!r}, which does not exist",
            allowed="a file or folder that does",
            hint="set data-dir to one",
        )
    if not path.is_dir():
        raise DataError(
            "data-dir",
            got=f"{data_dir!r}, which is a file",
            allowed="the folder that holds this data set's files",
            hint="set data-dir to it",
        )
    return path


def homes(root: Path) -> list[Path]:
    """Return the folders that may hold a data set's files: `root` and those one below it, sorted."""
    return [root, *sorted(path for path in root.iterdir() if path.is_dir())]


def find(root: Path, *names: str) -> Path | None:
    """Return the first file called one of `names`, in `root` or one folder below it, else None."""
    paths = (home / name for home in homes(root) for name in names)
    return next((path for path in paths if path.is_file()), None)


def find_all(root: Path, files: Sequence[Sequence[str]]) -> list[Path] | None:
    """Return for each file the path that `find` finds under its names; None if any file is missing."""
    paths = [path for path in (find(root, *names) for names in files) if path is not None]
    return paths if len(paths) == len(files) else None


def not_found(dataset: str, looked_for: Sequence[str], data_dir: str, also: str = "") -> DataError:
    """Return the error for a data set that was not found."""
    place = f"no such files in data-dir {data_dir!r} and the folders in it" if data_dir else "no data-dir"
    return DataError(
        f"data set {dataset!r}",
        got=f"{place} ({also})" if also else place,
        allowed=f"a folder with {'; or '.join(looked_for)}",
        hint=f"to get it: {WHERE[dataset]}; put it into a folder and set data-dir to that folder",
    )


def locate(dataset: str, data_dir: str, endings: Sequence[str]) -> tuple[Path, Path | None]:
    """Return a generic set's training file and, if there is one, its test file.

    `data_dir` is the file itself, a folder with `train.*` and perhaps `test.*`, or a folder with one such
    file.

    Raises:
        DataError: says which endings were looked for and what was there.
    """
    path = Path(data_dir).expanduser()
    if path.is_file():
        return path, None
    root = folder(data_dir)
    found = sorted(entry for entry in root.iterdir() if entry.is_file() and entry.name.endswith(tuple(endings)))
    named = {split: [entry for entry in found if entry.name.split(".")[0] == split] for split in ("train", "test")}
    if len(named["train"]) == 1 and len(named["test"]) <= 1:
        return named["train"][0], next(iter(named["test"]), None)
    if len(found) == 1 and not named["test"]:
        return found[0], None
    there = ", ".join(entry.name for entry in found) or "no file"
    raise DataError(
        f"dataset {dataset!r}",
        got=f"{there} in data-dir {data_dir!r}",
        allowed=f"one file ({', '.join(endings)}), or train.* and test.*",
        hint="set data-dir to the file",
    )


def read_bytes(path: Path) -> bytes:
    """Return a file's content, unpacked when its name ends in .gz.

    Raises:
        DataError: when the file cannot be read or is not what its name says.
    """
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            path,
            got=f"a file that cannot be read ({error})",
            allowed="one that is whole, packed where it ends in .gz",
            hint="fetch it again",
        ) from error
