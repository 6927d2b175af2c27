"""Samplers: epochs of batches without replacement, batches that nobody can foresee, and a pool walked as a queue.

A batch of `EpochSampler` depends on its address (seed, purpose, client, position) only, so no state must be saved.
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


def on_device(indices: Int64[np.ndarray, "*shape"], device: torch.device) -> Int64[Tensor, "*shape"]:
    """Indices as a tensor on the device; from pinned memory to a GPU, so that nothing waits for the copy."""
    tensor = torch.from_numpy(indices)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def draw_some(count: int, most: int, rng: np.random.Generator) -> Int64[np.ndarray, "some"]:
    """Draw a uniform subset of 0..count-1, in order.

    Args:
        count: how many there are.
        most: how many are drawn; all if there are no more.
        rng: whose numbers decide.
    """
    return np.arange(count) if count <= most else np.sort(rng.choice(count, most, replace=False))


class EpochSampler:
    """Batches of a fixed set of indices, reshuffled every epoch.

    The last incomplete batch of an epoch is dropped unless it is the only one (then every batch is the whole set,
    shuffled).

    Args:
        indices: the samples to draw from; none gives empty batches.
        batch_size: samples a batch; 0 means all.
        seed: with ``purpose`` and ``keys`` the address of this sampler's streams.
        purpose: see `problems.randomness.Purpose`.
        keys: the rest of the address.

    Attributes:
        drawn: the order of the newest epoch, by the epoch's number.
    """

    def __init__(
        self, indices: Int64[np.ndarray, "n"], batch_size: int, seed: int, purpose: Purpose, *keys: int
    ) -> None:
        self.indices = indices
        self.batch_size = min(batch_size or len(indices), len(indices))
        self.address = (seed, purpose, keys)
        self.drawn: dict[int, Indices] = {}  # replaced as a whole, since threads may share a sampler

    def batch(self, position: int) -> Int64[np.ndarray, "b"]:
        """The indices of batch number ``position``, counted from 0 over the whole run."""
        if self.batch_size == 0:
            return self.indices
        epoch, place = divmod(position, len(self.indices) // self.batch_size)
        order = self.drawn.get(epoch)
        if order is None:
            seed, purpose, keys = self.address
            order = self.indices[stream(seed, purpose, *keys, epoch).permutation(len(self.indices))]
            self.drawn = {epoch: order}
        return order[place * self.batch_size : (place + 1) * self.batch_size]


class PoissonSampler:
    """Batches that have each index with the same chance, independently; others cannot know which.

    Args:
        indices: the samples to draw from.
        batch_size: samples a batch, on average; 0 means all.
        drawn: called before each batch.
    """

    def __init__(
        self, indices: Int64[np.ndarray, "n"], batch_size: int, drawn: Callable[[], None] = lambda: None
    ) -> None:
        self.indices = indices
        self.rate = rate_of(batch_size, len(indices))
        self.drawn = drawn

    def batch(self, position: int) -> Int64[np.ndarray, "b"]:
        """The indices of a batch: a new one at each call, whatever its number ``position``."""
        self.drawn()
        drawn: Indices = self.indices[draw_secretly(len(self.indices), self.rate)]
        return drawn


def rate_of(batch_size: int, count: int) -> float:
    """Return the chance of each sample to be in a batch.

    Args:
        batch_size: samples a batch, on average; 0 means all.
        count: how many samples there are.
    """
    return min(1.0, batch_size / count) if batch_size and count else 1.0


class PoolQueue:
    """Entries 0..size-1 in random order, taken from the front, reshuffled when they run out.

    If every draw asks for ``size`` entries or more, each returns the whole pool, every entry once.

    Args:
        size: of the pool.
        seed: with ``purpose`` and ``keys`` the address of the stream that orders the entries.
        purpose: see `problems.randomness.Purpose`.
        keys: the rest of the address.
        wanted: how many entries will be taken; a large pool is then not shuffled for a few. 0: unknown.
    """

    def __init__(self, size: int, seed: int, purpose: Purpose, *keys: int, wanted: int = 0) -> None:
        self.size = size
        self._rng = stream(seed, purpose, *keys)
        few = 0 < 4 * wanted <= size >= _LARGE
        self._queue = self._rng.choice(size, wanted, replace=False) if few else self._rng.permutation(size)
        self._next = 0

    def take(self, count: int) -> Int64[np.ndarray, "{min(count,self.size)}"]:
        """The next entries; a reshuffle in between may repeat one."""
        count = min(count, self.size)
        taken = self._queue[self._next : self._next + count]
        self._next += count
        if len(taken) < count:
            self._queue = self._rng.permutation(self.size)
            self._next = count - len(taken)
            taken = np.concatenate([taken, self._queue[: self._next]])
        return taken
