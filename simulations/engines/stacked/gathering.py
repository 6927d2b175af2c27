"""Copies of the rows in many clients' batches, made for several local steps at once to save time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from problems.sampling import Indices, on_device
from problems.site import Site
from simulations.engines.stacked.picked import PickedRows

# maximum bytes of features in one copy
GATHERED = 2**25


class Gatherer:
    """A function object that copies rows of many sites into one block. It reuses the block's memory, to save time."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None
        self._pool: _Pool | None = None

    def features(self, sites: Sequence[Site], rows: Indices, size: int) -> Iterator[Tensor]:
        """Yield the features (C, size, *shape) of consecutive batches. The next batch overwrites the previous batch.

        Args:
            sites: The C clients' sites.
            rows: The (C, K size) rows of each site's K consecutive batches.
            size: The number of rows of a batch.
        """
        like, pool = sites[0].features, self._pool_of(sites)
        a_batch = len(sites) * size * math.prod(like.shape[1:]) * like.element_size()
        length = max(GATHERED // max(a_batch, 1), 1) * size
        for start in range(0, rows.shape[1], length):
            part = rows[:, start : start + length]
            yield from (self._from_all if pool.is_small(rows) else self._from_each)(pool, part, size)

    def labels(self, sites: Sequence[Site], rows: Indices) -> Tensor:
        """Return the outcomes (C, n) of rows (C, n): labels, or codes of times."""
        pool, device = self._pool_of(sites), sites[0].labels.device
        if pool.is_small(rows):
            drawn = on_device((rows + pool.starts).reshape(-1), device)
            return torch.index_select(pool.labels, 0, drawn).view(*rows.shape, *pool.labels.shape[1:])
        pairs = zip(sites, on_device(rows, device), strict=True)
        return torch.stack([torch.index_select(site.outcomes, 0, drawn) for site, drawn in pairs])

    def batches(
        self, sites: Sequence[Site], rows: Indices, size: int, *, picked: bool = False
    ) -> Iterator[tuple[Any, Tensor]]:
        """Yield the features (C, size, *shape) of consecutive batches, as in `features`, and their labels (C, size).

        Args:
            sites: See `features`.
            rows: See `features`.
            size: See `features`.
            picked: Whether the features are `PickedRows` if possible, for linear models.
        """
        labels, pool = torch.split(self.labels(sites, rows), size, 1), self._pool_of(sites)
        features = sites[0].features
        if picked and features.ndim == 2 and features.device.type == "cpu" and pool.is_small(rows):
            parts = pool.by_batch(rows, size)
            return zip((PickedRows(pool.features, part) for part in parts), labels, strict=True)
        return zip(self.features(sites, rows, size), labels, strict=True)

    def _pool_of(self, sites: Sequence[Site]) -> _Pool:
        """Return the sites' concatenated rows, from the last call if it was about the same sites."""
        if self._pool is None or self._pool.sites != sites:
            self._pool = _Pool(sites)
        return self._pool

    def _from_all(self, pool: _Pool, rows: Indices, size: int) -> Iterator[Tensor]:
        """Copy one batch of all sites after another, so a local step finds its batch in the processor's cache."""
        like, count = pool.features, len(rows)
        by_batch = pool.by_batch(rows, size).reshape(-1, count * size)
        block = self._take((count, size, *like.shape[1:]), like)
        for indices in on_device(by_batch, like.device):
            torch.index_select(like, 0, indices, out=block.flatten(0, 1))
            yield block

    def _from_each(self, pool: _Pool, rows: Indices, size: int) -> Iterator[Tensor]:
        """Copy all batches of one site after another."""
        like = pool.sites[0].features
        block = self._take((*rows.shape, *like.shape[1:]), like)
        for site, indices, out in zip(pool.sites, on_device(rows, like.device), block, strict=True):
            torch.index_select(site.features, 0, indices, out=out)
        yield from torch.split(block, size, 1)

    def _take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        count, known = math.prod(shape), self._memory
        if known is None or known.dtype != like.dtype or known.device != like.device or len(known) < count:
            known = self._memory = like.new_empty(count)
        return known[:count].view(shape)


class _Pool:
    """The concatenated rows of several sites.

    Attributes:
        starts: The (C, 1) index of each site's first row.
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites, lengths = sites, [len(site) for site in sites]
        self.starts = np.cumsum([0, *lengths[:-1]])[:, np.newaxis]
        self._max_rows = max(lengths)

    def is_small(self, rows: Indices) -> bool:
        """Return whether at least as many rows (C, n) are drawn from each site as it has, so concatenation is cheap."""
        drawn: int = rows.shape[1]
        return self._max_rows <= drawn

    def by_batch(self, rows: Indices, size: int) -> Indices:
        """Return rows (C, K size) of each site as rows (K, C, size) of the concatenation."""
        ordered: Indices = np.add(rows.reshape(len(rows), -1, size).swapaxes(0, 1), self.starts, order="C")
        return ordered

    @cached_property
    def features(self) -> Tensor:
        return torch.cat([site.features for site in self.sites])

    @cached_property
    def labels(self) -> Tensor:
        return torch.cat([site.outcomes for site in self.sites])
