"""Rows of images that are read from their files when a batch needs them, for sets that are larger than memory.

`ImageRows` selects rows of an `ImageStore`, which reads the files. It has the part of an array's interface that samples
need. Threads may read ahead, since Pillow, zlib and NumPy let other threads run while they decode an image.
"""

import logging
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Int64, Shaped
from numpy.typing import DTypeLike, NDArray

from problems.data import mapped

AHEAD = 2**27
"""The size in bytes of the images that are read ahead."""
_STREAMS = 4
"""The number of sequences, such as positives and negatives, that can be read ahead at the same time."""
_WINDOW = 4
"""The number of calls for each thread that `run_in_order` starts ahead."""

_log = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")


class ImageStore:
    """Images of equal shape in files, and the cache of images in memory.

    The first images that are used stay in the cache. If it can contain a share c of the images, an epoch in random
    order therefore finds a share c there. A cache of the last used images finds only c + (1 - c) log(1 - c), such as
    0.15 of the images with c = 0.5, since it drops most images before their next use.

    Args:
        decode: A function that reads an image by its number. It must be picklable.
        count: The number of images.
        shape: The shape of an image.
        dtype: The type of an image's numbers.
        cache: The largest size of the cache in bytes.
        workers: The number of threads that read images. 0: images are read by the calling thread, when they are needed.
    """

    def __init__(
        self,
        decode: Callable[[int], NDArray[Any]],
        count: int,
        shape: tuple[int, ...],
        dtype: DTypeLike,
        cache: int = 0,
        workers: int = 0,
    ) -> None:
        self.decode, self.count, self.shape, self.dtype = decode, count, shape, np.dtype(dtype)
        self.cache, self.workers = cache, workers
        self._size = max(math.prod(shape) * self.dtype.itemsize, 1)
        self._lock = threading.Lock()
        self._cached: dict[int, NDArray[Any]] = {}
        self._pending: dict[int, Future[NDArray[Any]]] = {}
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def __reduce__(self) -> Any:
        """Pickle the store without its images and threads: another process has its own cache."""
        return ImageStore, (self.decode, self.count, self.shape, self.dtype, self.cache, self.workers)

    @property
    def cached_bytes(self) -> int:
        """The size of the images in the cache."""
        return len(self._cached) * self._size

    def take(
        self, numbers: Int64[np.ndarray, "b"], following: Int64[np.ndarray, "_"] | None = None
    ) -> Shaped[np.ndarray, "b *shape"]:
        """Return images by their numbers.

        Args:
            numbers: The images' numbers.
            following: The numbers of the images that will be needed next, which threads then read. None: unknown.

        Raises:
            DataError: A file cannot be read, or has changed; names the file.
        """
        images = np.empty((len(numbers), *self.shape), self.dtype)
        wanted = numbers.tolist()
        futures = dict[int, Future[NDArray[Any]]]()
        if self.workers:
            with self._lock:
                for number in wanted:
                    if number not in self._cached and number not in futures:
                        futures[number] = self._pending.pop(number) if number in self._pending else self._submit(number)
        if following is not None:
            self.read_ahead(following)
        for index, number in enumerate(wanted):
            image = self._cached.get(number)
            if image is None:
                image = futures[number].result() if number in futures else self.decode(number)
                self._keep(number, image)
            images[index] = image
        return images

    def read_ahead(self, numbers: Int64[np.ndarray, "_"]) -> None:
        """Let threads read images that will be needed soon, up to a part of `AHEAD`; without threads, do nothing.

        Args:
            numbers: The images' numbers, in the order of their use.
        """
        if not self.workers:
            return
        limit = max(AHEAD // (_STREAMS * self._size), 1)
        with self._lock:
            for number in numbers[:limit].tolist():
                if number not in self._cached and number not in self._pending:
                    self._pending[number] = self._submit(number)
            while len(self._pending) > _STREAMS * limit:  # the oldest, which no batch has needed
                self._pending.pop(next(iter(self._pending))).cancel()

    def _keep(self, number: int, image: NDArray[Any]) -> None:
        with self._lock:
            if self.cached_bytes + self._size <= self.cache:
                self._cached[number] = image

    def _submit(self, number: int) -> "Future[NDArray[Any]]":
        if self._pool is None or self._pool[0] != os.getpid():  # a forked process has no threads
            self._pool = os.getpid(), ThreadPoolExecutor(self.workers, "images")
            self._pending.clear()
        return self._pool[1].submit(self.decode, number)


@dataclass(frozen=True, eq=False)
class ImageRows:
    """Rows of a store. Slices and selections are further `ImageRows`; only `read`, a single row, and NumPy read files.

    Attributes:
        store: The store.
        numbers: The number of each row's image.
        scaled: Whether bytes become float32 in [0, 1].
    """

    store: ImageStore
    numbers: Int64[np.ndarray, "n"]
    scaled: bool = False

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of all rows."""
        return len(self), *self.store.shape

    @property
    def ndim(self) -> int:
        """The number of axes of the array of all rows."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the numbers."""
        return np.dtype(np.float32) if self.scaled else self.store.dtype

    def __getitem__(self, rows: Any) -> Any:
        """Return rows as `ImageRows`, or the image of a single row."""
        if np.ndim(rows) == 0 and not isinstance(rows, slice):
            return self.read(np.array([rows], dtype=np.int64))[0]
        return replace(self, numbers=self.numbers[rows])

    def read(
        self, rows: Int64[np.ndarray, "b"], following: Int64[np.ndarray, "_"] | None = None
    ) -> Shaped[np.ndarray, "b *shape"]:
        """Return the pixels of rows.

        Args:
            rows: The rows' indices.
            following: The indices of the rows that will be needed next. None: unknown.

        Raises:
            DataError: A file cannot be read, or has changed; names the file.
        """
        images = self.store.take(self.numbers[rows], None if following is None else self.numbers[following])
        if self.scaled and images.dtype == np.uint8:
            scaled: np.ndarray = np.divide(images, 255, dtype=np.float32)
            return scaled
        return images

    def blocks(self) -> Iterator[tuple[slice, Shaped[np.ndarray, "b *shape"]]]:
        """Yield slices of about `problems.data.mapped.SLICE` bytes of pixels, each with its pixels."""
        step = max(mapped.SLICE // max(math.prod(self.shape[1:]) * self.dtype.itemsize, 1), 1)
        rows = np.arange(len(self))
        for start in range(0, len(self), step):
            end = start + step
            yield slice(start, end), self.read(rows[start:end], rows[end : end + step])

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Read all rows into an array from `problems.data.mapped.allocate`, for code that needs all rows at once."""
        whole = mapped.allocate(self.shape, dtype or self.dtype)
        for part, pixels in self.blocks():
            whole[part] = pixels
        return whole


def concatenate(parts: Sequence[Any], dtype: DTypeLike | None = None) -> Any:
    """Concatenate arrays as `problems.data.mapped.concatenate` does. Rows of a single store are not read.

    Args:
        parts: The arrays or `ImageRows`, at least one.
        dtype: As in `problems.data.mapped.concatenate`.

    Raises:
        DataError: See `problems.data.mapped.allocate`.
    """
    rows = [part for part in parts if isinstance(part, ImageRows)]
    if len(rows) == len(parts) and len({(id(part.store), part.scaled) for part in rows}) == 1:
        return replace(rows[0], numbers=np.concatenate([part.numbers for part in rows]))
    return mapped.concatenate([np.asarray(part) for part in parts], dtype)


def run_in_order(function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """Yield a function's results in the order of the items. Threads compute a few results ahead.

    Args:
        function: The function.
        items: The items.
        workers: The number of threads. 0: the calling thread computes each result when it is needed.
    """
    if not workers:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(workers, "images") as pool:
        started = deque[Future[R]]()
        try:
            for item in items:
                started.append(pool.submit(function, item))
                if len(started) >= _WINDOW * workers:
                    yield started.popleft().result()
            while started:
                yield started.popleft().result()
        finally:
            for future in started:
                future.cancel()
