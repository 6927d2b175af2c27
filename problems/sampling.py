"""Samplers of mini-batches: epochs without replacement, unpredictable batches, and a queue in random order.

A batch of `EpochSampler` depends only on its address (seed, purpose, client, position), so no state must be saved.
"""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from problems.randomness import Purpose, draw_secretly, stream

Indices = NDArray[np.int64]
_LARGE = 2**16
BATCHES_AHEAD = 2
"""The number of further batches that `EpochSampler` announces with a batch."""


def on_device(indices: Int64[np.ndarray, "*shape"], device: torch.device) -> Int64[Tensor, "*shape"]:
    """Return indices as a tensor on the device. The copy to a GPU is asynchronous, from pinned memory."""
    tensor = torch.from_numpy(indices)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def draw_some(count: int, size: int, rng: np.random.Generator) -> Int64[np.ndarray, "some"]:
    """Draw a uniform subset of 0..count-1, ascending.

    Args:
        count: The number of elements.
        size: The number of elements to draw. All elements are drawn if there are fewer.
        rng: The random generator.
    """
    return np.arange(count) if count <= size else np.sort(rng.choice(count, size, replace=False))


class EpochSampler:
    """Batches of a fixed set of indices, reshuffled every epoch.

    An incomplete last batch of an epoch is dropped. If the set is smaller than a batch, every batch is the whole set,
    shuffled.

    Args:
        indices: The samples to draw from. Batches are empty if this set is empty.
        batch_size: The number of samples in a batch. 0: all samples.
        seed: The run's seed. It is part of the address of this sampler's streams, like ``purpose`` and ``keys``.
        purpose: The purpose, see `problems.randomness.Purpose`.
        keys: The further numbers of the address.

    Attributes:
        drawn: The order of the newest epoch, by the epoch's number.
    """

    def __init__(
        self, indices: Int64[np.ndarray, "n"], batch_size: int, seed: int, purpose: Purpose, *keys: int
    ) -> None:
        self.indices = indices
        self.batch_size = min(batch_size or len(indices), len(indices))
        self.address = (seed, purpose, keys)
        self.drawn: dict[int, Indices] = {}  # replaced as a whole, since threads may share a sampler
        self._read_ahead: Callable[[Indices], None] | None = None
        self._end: int | None = None

    def announce(self, read_ahead: Callable[[Indices], None], end: int | None) -> None:
        """Announce each batch that is drawn, and the next batches of the epoch.

        Args:
            read_ahead: A function that is called with the indices of the batch and of the next `BATCHES_AHEAD` batches.
            end: The number of the first batch that is not announced. None: all batches are announced.
        """
        self._read_ahead, self._end = read_ahead, end

    def batch(self, position: int) -> Int64[np.ndarray, "b"]:
        """Return the indices of batch number ``position``, counted from 0 over the whole run."""
        if self.batch_size == 0:
            return self.indices
        epoch, number = divmod(position, len(self.indices) // self.batch_size)
        order = self.drawn.get(epoch)
        if order is None:
            seed, purpose, keys = self.address
            order = self.indices[stream(seed, purpose, *keys, epoch).permutation(len(self.indices))]
            self.drawn = {epoch: order}
        size, after = self.batch_size, number + 1
        if self._read_ahead is not None:
            more = BATCHES_AHEAD if self._end is None else min(BATCHES_AHEAD, self._end - position - 1)
            self._read_ahead(order[number * size : (after + max(more, 0)) * size])
        return order[number * size : after * size]


class PoissonSampler:
    """Batches that contain each index with the same chance, independently and unpredictably.

    Args:
        indices: The samples to draw from.
        batch_size: The mean number of samples in a batch; 0 means all.
        drawn: A function that is called before each batch.
    """

    def __init__(
        self, indices: Int64[np.ndarray, "n"], batch_size: int, drawn: Callable[[], None] = lambda: None
    ) -> None:
        self.indices = indices
        self.rate = rate_of(batch_size, len(indices))
        self.drawn = drawn

    def batch(self, position: int) -> Int64[np.ndarray, "b"]:
        """Return the indices of a new batch. The batch's number ``position`` has no effect."""
        self.drawn()
        drawn: Indices = self.indices[draw_secretly(len(self.indices), self.rate)]
        return drawn


def rate_of(batch_size: int, count: int) -> float:
    """Return the chance of each sample to be in a batch.

    Args:
        batch_size: The mean number of samples in a batch; 0 means all.
        count: The number of samples.
    """
    return min(1.0, batch_size / count) if batch_size and count else 1.0


class PoolQueue:
    """Entries 0..size-1 in random order, removed from the front, reshuffled when they run out.

    If every draw asks for at least ``size`` entries, each draw returns every entry once.

    Args:
        size: The number of entries.
        seed: The run's seed. It is part of the address of the stream, like ``purpose`` and ``keys``.
        purpose: The purpose, see `problems.randomness.Purpose`.
        keys: The further numbers of the address.
        wanted: The number of entries that will be used, to avoid the shuffle of a large pool for few entries. 0:
            unknown.
    """

    def __init__(self, size: int, seed: int, purpose: Purpose, *keys: int, wanted: int = 0) -> None:
        self.size = size
        self._rng = stream(seed, purpose, *keys)
        few = 0 < 4 * wanted <= size >= _LARGE
        self._queue = self._rng.choice(size, wanted, replace=False) if few else self._rng.permutation(size)
        self._next = 0

    def take(self, count: int) -> Int64[np.ndarray, "{min(count,self.size)}"]:
        """Return the next ``count`` entries, at most ``size``. If the queue is reshuffled, entries may repeat."""
        count = min(count, self.size)
        taken = self._queue[self._next : self._next + count]
        self._next += count
        if len(taken) < count:
            self._queue = self._rng.permutation(self.size)
            self._next = count - len(taken)
            taken = np.concatenate([taken, self._queue[: self._next]])
        return taken
