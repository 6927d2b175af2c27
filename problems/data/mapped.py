"""Arrays that may be larger than memory: large arrays are memory-mapped to an unnamed temporary file.

The operating system writes pages of the file to the disk and drops them from memory as necessary. It frees the disk
space when the array is deleted, or when the process ends or crashes.
"""

import errno
import logging
import math
import mmap
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from jaxtyping import Shaped
from numpy.typing import DTypeLike, NDArray

from problems.data.spec import DataError

SHARE = 0.25
"""The size up to which an array is in memory, as a share of the free memory."""
ALWAYS = 2**26
"""The size in bytes up to which an array is in memory, whatever the free memory."""
SLICE = 2**24
"""The size in bytes of the slices in which large arrays are processed."""
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")

_log = logging.getLogger(__name__)


def allocate(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return a new array, not initialised: in memory, or in a file in the folder for temporary files if it is large.

    Args:
        shape: The shape of the array.
        dtype: The type of the array.

    Raises:
        DataError: The disk has no room for the file.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size <= ALWAYS or size <= largest_in_memory():
        with suppress(MemoryError):  # the process may have its own limit
            return np.empty(shape, dtype)
    folder = tempfile.gettempdir()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            _reserve(file, size)
            mapped = mmap.mmap(file.fileno(), size)
    except OSError as error:
        got = f"{folder}, which has no room for a file of {size / 1e9:.1f} GB ({error.strerror})"
        allowed = "a folder with enough free space, since the data do not fit into memory"
        raise DataError("TMPDIR", got=got, allowed=allowed, hint="set TMPDIR to a folder on a larger disk") from None
    _tell(folder)
    return np.ndarray(shape, dtype, buffer=mapped)


def largest_in_memory() -> int:
    """Return the size in bytes up to which an array is in memory."""
    return max(ALWAYS, int(SHARE * _free_memory()))


def slices(array: Shaped[np.ndarray, "n *shape"]) -> Iterator[slice]:
    """Divide the rows of an array into slices of about `SLICE` bytes."""
    step = max(SLICE * len(array) // max(array.nbytes, 1), 1)
    return (slice(start, start + step) for start in range(0, len(array), step))


def concatenate(
    parts: Sequence[Shaped[np.ndarray, "_ *shape"]], dtype: DTypeLike | None = None
) -> Shaped[np.ndarray, "n *shape"]:
    """Concatenate arrays into a new array from `allocate`.

    Args:
        parts: The arrays, at least one.
        dtype: The type of the result. None: the type of the first array.

    Raises:
        DataError: See `allocate`.
    """
    first = parts[0]
    whole = allocate((sum(map(len, parts)), *first.shape[1:]), first.dtype if dtype is None else dtype)
    return np.concatenate(parts, out=whole, casting="same_kind")


@cache
def _tell(folder: str) -> None:
    _log.warning("large arrays are in temporary files in %s while this process runs, since free memory is low", folder)


def _reserve(file: IO[bytes], size: int) -> None:
    """Set a file's length and reserve its disk blocks: a later write to a full disk would crash the process.

    Raises:
        OSError: The disk does not have enough free blocks.
    """
    if sys.platform == "linux":
        os.posix_fallocate(file.fileno(), 0, size)
    elif shutil.disk_usage(tempfile.gettempdir()).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    else:
        os.truncate(file.fileno(), size)


def _free_memory() -> int:
    """Return the free memory in bytes, within a container's limit; if it is unknown, the total memory."""
    try:
        match = re.search(r"^MemAvailable:\s*(\d+) kB$", MEMINFO.read_text(), re.MULTILINE)
    except OSError:
        match = None
    free = int(match[1]) * 1024 if match else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # not in a container, or in a container without a limit ("max")
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        free = min(free, max(limit - used, 0))
    return free
