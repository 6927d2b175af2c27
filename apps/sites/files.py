"""Files that are complete or absent: written under another name, flushed to disk, then renamed.

A *sealed* file holds named arrays in safetensors, and in its metadata its format, its version and a hash of everything
else in it, so that a truncated or changed file is noticed.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as save_tensors

from payloads.record import PayloadError
from problems.errors import InputError

OWNER_ONLY = 0o600
FORMAT, VERSION, SEAL = "format", "version", "sha256"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFullError(InputError, OSError):
    """The disk, or the user's quota, has no room for a file."""


@contextlib.contextmanager
def room_for(path: Path) -> Iterator[None]:
    """Context for writing a file, or into a folder.

    Raises:
        DiskFullError: there is no room; names the path, which the system's own error does not.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        got, way_out = os.strerror(error.errno), "make room there; resume=true goes on from the newest checkpoint"
        raise DiskFullError(path, got=got, allowed="a disk with room", hint=way_out) from None


def write_atomic(path: Path, data: bytes, *, private: bool = False) -> None:
    """Replace a file so that readers always find the old or the new one, even after a crash; ``private``: mode 0600.

    Raises:
        DiskFullError: there is no room.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with room_for(path):
        try:
            with open_new(beside, private=private) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        flush(path.parent)


def open_new(path: Path, *, private: bool) -> BinaryIO:
    """Open an empty file to write to; a private one has mode 0600 before anything is in it."""
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWNER_ONLY if private else 0o666)
    if private:
        os.fchmod(opened, OWNER_ONLY)  # os.open keeps the mode of an existing file
    return os.fdopen(opened, "wb")


def flush(path: Path) -> None:
    """Force a file's bytes, or a folder's entries, to the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def make_folder(path: Path, *, private: bool = False) -> None:
    """Make a folder and its missing parents, flushed to disk.

    Args:
        private: whether they get mode 0700; folders that are there already stay as they are.
    """
    if not path.is_dir():
        make_folder(path.parent, private=private)
        path.mkdir(mode=0o700 if private else 0o777, exist_ok=True)
        flush(path.parent)


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that its owner alone can read, made if it is missing, while a lock keeps other processes out."""
    make_folder(path.parent, private=True)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, OWNER_ONLY), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def write_tensors(
    path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str], *, private: bool = False
) -> None:
    """Write named arrays as one safetensors file, atomically.

    Args:
        metadata: texts by name, which stand in the file's header.
        private: as for `write_atomic`.
    """
    contiguous = {name: value.copy(order="C") for name, value in arrays.items()}
    write_atomic(path, save_tensors(contiguous, dict(metadata)), private=private)


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Named arrays and metadata of a safetensors file; nothing in it is executed.

    Raises:
        PayloadError: the file is missing, truncated or not safetensors, or holds number types that NumPy lacks.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = dict(file.metadata() or {})
    except (SafetensorError, OSError, AttributeError, TypeError, ValueError) as error:
        raise PayloadError(f"{path}: {error}") from None
    for name, value in arrays.items():
        if value.dtype.kind not in "biuf":  # where another package has taught NumPy further types
            raise PayloadError(f"{path}: {name} has number type {value.dtype}")
    return arrays, metadata


def write_sealed(
    path: Path,
    kind: str,
    version: str,
    arrays: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, str],
    *,
    private: bool = False,
) -> None:
    """Write a sealed file, atomically; ``private``: as for `write_atomic`.

    Args:
        kind: the name of its format, which `read_sealed` compares, as it does the version.
        metadata: further texts by name.
    """
    header = {**metadata, FORMAT: kind, VERSION: version}
    write_tensors(path, arrays, {**header, SEAL: _seal(arrays, header)}, private=private)


def read_sealed(path: Path, kind: str, version: str) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Named arrays and metadata of a sealed file.

    Raises:
        PayloadError: it is missing, truncated, of another format or version, or changed since it was written.
    """
    arrays, metadata = read_tensors(path)
    got = metadata.get(FORMAT, "none"), metadata.get(VERSION, "none")
    if got != (kind, version):
        raise PayloadError(f"{path}: format {got[0]!r} of version {got[1]!r}, expected {kind!r} of version {version!r}")
    if metadata.pop(SEAL, "") != _seal(arrays, metadata):
        raise PayloadError(f"{path}: its content is not what was written (sha256)")
    return arrays, metadata


def _seal(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name, value in sorted(arrays.items()):
        digest.update(json.dumps([name, value.dtype.str, value.shape]).encode())
        digest.update(value.tobytes())
    return digest.hexdigest()
