"""The rows of the batches of a vertical run. Every party derives the same batches from the seed alone.

Each batch is an update that an *active* party (a party with labels) leads.
"""

from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
from jaxtyping import Int64

from problems.randomness import stream

PURPOSE = "vertical batches"
_KEPT_EPOCHS = 2


def shares(rows: int, active: int) -> list[slice]:
    """Cut rows, in their order, into one slice for each active party, with the sizes of `np.array_split`.

    Args:
        rows: The number of rows.
        active: The number of active parties, 1 or more.
    """
    sizes = (rows // active + (index < rows % active) for index in range(active))
    return [slice(start, stop) for start, stop in pairwise(accumulate(sizes, initial=0))]


class Schedule:
    """The batches of all epochs.

    Each epoch permutes the rows. The permutation is cut into one slice for each active party, and each slice into
    batches, of which the last may be smaller. Epoch e, counted over the whole run from 0, has the permutation
    `stream(seed, "vertical batches", e)`.

    Args:
        rows: The number n of training rows.
        active: The number m of active parties, 1 to n.
        batch_size: The rows of a batch. 0: the whole slice.
        seed: The seed, >= 0.

    Raises:
        ValueError: An argument is out of range.
    """

    def __init__(self, rows: int, active: int, batch_size: int, seed: int) -> None:
        if rows < 1:
            raise ValueError(f"rows must be 1 or more, got {rows}")
        if not 1 <= active <= rows:
            raise ValueError(f"active parties must be 1 to {rows:,}, the number of rows, got {active}")
        if batch_size < 0:
            raise ValueError(f"batch_size must be 0 (a party's whole slice) or more, got {batch_size}")
        if seed < 0:
            raise ValueError(f"seed must be 0 or more, got {seed}")
        self.rows, self.active, self.batch_size, self.seed = rows, active, batch_size, seed
        # the rows of each active party in a full pass over all rows, in their order
        self.chunks = shares(rows, active)
        self._drawn = lru_cache(_KEPT_EPOCHS)(self._draw)

    def batches(self, epoch: int, index: int) -> list[Int64[np.ndarray, "_"]]:
        """Return the batches of an active party in an epoch, as read-only arrays of rows in order.

        The last two epochs are cached, so repeated calls return the same arrays.

        Args:
            epoch: The epoch, counted over the whole run from 0.
            index: The party's index among the active parties, from 0.

        Raises:
            ValueError: The epoch is below 0, or the index is outside 0 .. active - 1.
        """
        self._check_index(index)
        if epoch < 0:
            raise ValueError(f"epoch must be 0 or more, got {epoch}")
        return list(self._drawn(epoch)[index])

    def count(self, index: int) -> int:
        """Return the number of batches of an active party in an epoch.

        Args:
            index: The party's index among the active parties, from 0.

        Raises:
            ValueError: The index is outside 0 .. active - 1.
        """
        self._check_index(index)
        length: int = self.chunks[index].stop - self.chunks[index].start
        return -(-length // (self.batch_size or length))

    def _draw(self, epoch: int) -> list[list[Int64[np.ndarray, "_"]]]:
        order = stream(self.seed, PURPOSE, epoch).permutation(self.rows).astype(np.int64, copy=False)
        order.setflags(write=False)
        drawn = []
        for part in self.chunks:
            size = self.batch_size or part.stop - part.start
            drawn.append([order[first : min(first + size, part.stop)] for first in range(part.start, part.stop, size)])
        return drawn

    def _check_index(self, index: int) -> None:
        if not 0 <= index < self.active:
            raise ValueError(f"index must be 0 to {self.active - 1}, of {self.active} active parties, got {index}")
