"""Output files of ``--out``. They are written completely or not at all, and never replace a file of another kind."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.config import ConfigError
from apps.run_directory.versions import NAME
from problems.calibration import IDENTITY
from problems.files import make_folder, write_atomic

Recognize = Callable[[bytes], bool]
Map = Callable[[Any], NDArray[np.float64]]

_ROWS = 20  # the number of rows that `is_scores` checks
_TOLERANCE = 1e-6


def write_output(target: Path, content: bytes, recognize: Recognize | None, inputs: Sequence[Path] = ()) -> None:
    """Write the file of ``--out``, completely or not at all.

    Args:
        target: The file.
        content: The bytes to write.
        recognize: A function that returns whether an existing file's bytes are an earlier output of the same command.
            Only such a file is replaced. None: any file is replaced, since the command itself chose the file's name.
        inputs: The files that the command reads.

    Raises:
        ConfigError: The file cannot be written, is an input, or was not written by the same command.
    """
    target = _absolute(target)
    if recognize is not None:
        check_target(target, recognize, inputs)
    try:
        make_folder(target.parent)
        write_atomic(target, content)
    except OSError as error:
        got = f"{target}, which cannot be written ({error.strerror or error})"
        raise ConfigError("--out", got=got, allowed="a writable file", hint="set --out to another file") from None


def make_out(folder: Path) -> None:
    """Create the folder of ``--out``, unless it exists.

    Args:
        folder: The folder.

    Raises:
        ConfigError: The folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        got = f"{folder}, which cannot be created ({error.strerror})"
        allowed = "a writable folder"
        raise ConfigError("--out", got=got, allowed=allowed, hint="set --out to another folder") from None


def check_target(target: Path, recognize: Recognize, inputs: Sequence[Path] = ()) -> None:
    """Check that a file may be written: it does not exist, or it is an earlier output of the same command.

    Args:
        target: The file.
        recognize: See `write_output`.
        inputs: The files that the command reads.

    Raises:
        ConfigError: The file may not be written.
    """
    target = _absolute(target)
    if not target.exists() or target.is_dir():  # writing to a folder raises a separate error
        return
    fault = ""
    if any(source.exists() and target.samefile(source) for source in (path.expanduser() for path in inputs)):
        fault = "which is an input file"
    elif not target.is_file():
        fault = "which is not a regular file"
    elif not recognize(target.read_bytes()):
        fault = "which exists, and which this command did not write"
    if fault:
        allowed = "a new file, or a file that this command wrote before"
        raise ConfigError("--out", got=f"{target}, {fault}", allowed=allowed, hint="set --out to another file")


def _absolute(target: Path) -> Path:
    """Return the absolute path without ``..``, which fails if a folder on the path does not exist yet."""
    target = target.expanduser()
    return target.parent.resolve() / target.name


def is_scores(content: bytes, columns: Sequence[str], maps: Sequence[Map] = (IDENTITY,), derived: int = 1) -> bool:
    """Return whether a file is a table of scores with these columns.

    One of the maps must give each score's probability, mean or survival.

    Args:
        content: The file's bytes, possibly compressed by gzip.
        columns: The names, among them "score", "risk_score" or "score_NAME", and after it the columns that follow from
            the score.
        maps: The maps from scores (n,) to probabilities or means (n,), or to survival (n, derived).
        derived: The number of columns that follow from the score.
    """
    try:
        text = (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode()
        lines = csv.reader(io.StringIO(text, newline=""), strict=True)
        if next(lines, None) != list(columns):
            return False
        start = next(
            place for place, name in enumerate(columns) if name in ("score", "risk_score") or name.startswith("score_")
        )
        places = range(start, start + derived + 1)
        cells = [[float(line[place]) for place in places] for line in islice(lines, _ROWS)]
        found = np.array(cells).reshape(-1, derived + 1)
        expected = (np.reshape(of(found[:, 0]), (len(found), derived)) for of in maps)
        return any(np.allclose(each, found[:, 1:], rtol=_TOLERANCE, atol=_TOLERANCE) for each in expected)
    except (OSError, EOFError, ValueError, IndexError, StopIteration, OverflowError, csv.Error):
        return False


def is_onnx(content: bytes) -> bool:
    """Return whether a file is a model that ``export`` wrote."""
    import onnx

    try:
        return bool(onnx.ModelProto.FromString(content).producer_name == NAME)
    except Exception:  # protobuf's error belongs to a package that is not a dependency
        return False


def is_card(content: bytes) -> bool:
    """Return whether a file is a model card that ``card`` wrote."""
    return content.startswith(f"---\nlibrary_name: {NAME}\n".encode())


def is_page(content: bytes) -> bool:
    """Return whether a file is a page that ``report`` wrote."""
    return f'<meta name="generator" content="{NAME}">'.encode() in content[:1000]
