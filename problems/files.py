"""Writing of files that are either complete or absent after a crash, file locks, and private folders."""

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from problems.errors import InputError

OWNER_ONLY = 0o600
LONGEST_SOCKET_PATH = 100
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFullError(InputError, OSError):
    """An error: the disk, or the user's quota, has no room for a file."""


@contextlib.contextmanager
def room_for(path: Path) -> Iterator[None]:
    """Convert errors of a full disk to a `DiskFullError` that names a path.

    Args:
        path: The file or the folder to which the enclosed block writes.

    Raises:
        DiskFullError: The disk has no room. The system's own error does not name the path.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        got, hint = os.strerror(error.errno), "make room on the disk; resume=true continues from the newest checkpoint"
        raise DiskFullError(path, got=got, allowed="a disk with room", hint=hint) from None


def write_atomic(path: Path, data: bytes, *, private: bool = False, flushed: bool = True) -> None:
    """Replace a file. Readers always find either the old or the new file, even after a crash.

    Args:
        path: The path of the file.
        data: The new content.
        private: Whether the file gets mode 0600.
        flushed: Whether the file is on the disk at the end. If not, a loss of power may undo the replacement.

    Raises:
        DiskFullError: The disk has no room.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with room_for(path):
        try:
            with open_new(beside, private=private) as file:
                file.write(data)
                file.flush()
                if flushed:
                    os.fsync(file.fileno())
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        if flushed:
            flush(path.parent)


def open_new(path: Path, *, private: bool) -> BinaryIO:
    """Open an empty file for writing. A private file has mode 0600 before any content is written."""
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
        private: Whether new folders get mode 0700; existing folders are not changed.
    """
    if not path.is_dir():
        make_folder(path.parent, private=private)
        path.mkdir(mode=0o700 if private else 0o777, exist_ok=True)
        flush(path.parent)


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a private file under an exclusive lock, so processes use the file in turn. A missing file is created."""
    make_folder(path.parent, private=True)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, OWNER_ONLY), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def socket_base() -> Path:
    """Return the folder for temporary files, or /tmp if its path is too long for Unix sockets."""
    base = tempfile.gettempdir()
    return Path(base if len(base) <= LONGEST_SOCKET_PATH // 2 else "/tmp")


def make_private(folder: Path) -> None:
    """Make a folder that only this user can enter, unless it exists.

    Raises:
        FileNotFoundError: Another process has just removed it.
        PermissionError: The path exists but is not a private folder of this user.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a private folder of this user")
