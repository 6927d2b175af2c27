"""Arrays that may be larger than memory: large ones lie in a file without a name, which is read page by page.

The system writes pages of the file to the disk and drops them from memory as it needs to, and frees the disk when the
array is gone or the process has ended, in whatever way.
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
"""Of the free memory: the largest array that is kept in it."""
ALWAYS = 2**26
"""Bytes of an array that is kept in memory in any case."""
SLICE = 2**24
"""Bytes of the slices in which large arrays are worked on."""
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")

_log = logging.getLogger(__name__)


def allocate(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return a new array for any values: in memory, or in a file of the folder for temporary files if it is large.

    Args:
        shape: of the array.
        dtype: of the array.

    Raises:
        DataError: there is no room for the file.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size <= ALWAYS or size <= largest_in_memory():
        with suppress(MemoryError):  # the process may have a limit of its own
            return np.empty(shape, dtype)
    folder = tempfile.gettempdir()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            _reserve(file, size)
            mapped = mmap.mmap(file.fileno(), size)
    except OSError as error:
        got = f"{folder}, which has no room for a file of {size / 1e9:.1f} GB ({error.strerror})"
        allowed = "a folder with that room, since the data do not fit into memory"
        raise DataError("TMPDIR", got=got, allowed=allowed, hint="let the variable name a folder on a disk") from None
    _tell(folder)
    return np.ndarray(shape, dtype, buffer=mapped)


def largest_in_memory() -> int:
    """Return how many bytes an array has at most that is kept in memory."""
    return max(ALWAYS, int(SHARE * _free_memory()))


def slices(array: Shaped[np.ndarray, "n *shape"]) -> Iterator[slice]:
    """Cut the rows of an array into slices that are small in memory."""
    step = max(SLICE * len(array) // max(array.nbytes, 1), 1)
    return (slice(start, start + step) for start in range(0, len(array), step))


def concatenate(
    parts: Sequence[Shaped[np.ndarray, "_ *shape"]], dtype: DTypeLike | None = None
) -> Shaped[np.ndarray, "n *shape"]:
    """Return the rows of some arrays one after another.

    Args:
        parts: one at least.
        dtype: of the result; None for that of the first.

    Raises:
        DataError: as of `allocate`.
    """
    first = parts[0]
    whole = allocate((sum(map(len, parts)), *first.shape[1:]), first.dtype if dtype is None else dtype)
    return np.concatenate(parts, out=whole, casting="same_kind")


@cache
def _tell(folder: str) -> None:
    _log.warning("data that are large for the free memory are in temporary files in %s while this process runs", folder)


def _reserve(file: IO[bytes], size: int) -> None:
    """Make a file so long and take its blocks, since a write to a page without one would end the process.

    Raises:
        OSError: there are not so many.
    """
    if sys.platform == "linux":
        os.posix_fallocate(file.fileno(), 0, size)
    elif shutil.disk_usage(tempfile.gettempdir()).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    else:
        os.truncate(file.fileno(), size)


def _free_memory() -> int:
    """The bytes of memory that are free, in a container those below its limit; all memory where this is not known."""
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB$", MEMINFO.read_text(), re.MULTILINE)
    except OSError:
        found = None
    free = int(found[1]) * 1024 if found else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no container, or one without a limit ("max")
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        free = min(free, max(limit - used, 0))
    return free
