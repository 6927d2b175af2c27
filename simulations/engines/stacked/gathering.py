"""Rows of many clients' sites, gathered for several local steps at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from problems.sampling import Indices, on_device
from problems.site import Site

# maximum bytes of the features that are gathered at once
GATHERED = 2**25


class Gatherer:
    """A gatherer that reuses its memory, since new memory costs as much as filling it."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None
        self._pool: _Pool | None = None

    def features(self, sites: Sequence[Site], rows: Indices, size: int) -> Iterator[Tensor]:
        """Yield the features (C, size, *shape) of consecutive batches. Each is valid until the next.

        Args:
            rows: The (C, K size) rows of each site's K consecutive batches.
        """
        like, pool = sites[0].features, self._pool_of(sites)
        a_batch = len(sites) * size * math.prod(like.shape[1:]) * like.element_size()
        length = max(GATHERED // max(a_batch, 1), 1) * size
        for start in range(0, rows.shape[1], length):
            some = rows[:, start : start + length]
            yield from (self._from_all if pool.is_small(some) else self._from_each)(pool, some, size)

    def labels(self, sites: Sequence[Site], rows: Indices) -> Tensor:
        """Return the labels (C, n) of rows (C, n)."""
        pool, device = self._pool_of(sites), sites[0].labels.device
        if pool.is_small(rows):
            return pool.labels[on_device(rows + pool.starts, device)]
        pairs = zip(sites, on_device(rows, device), strict=True)
        return torch.stack([torch.index_select(site.labels, 0, some) for site, some in pairs])

    def batches(self, sites: Sequence[Site], rows: Indices, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the features (C, size, *shape) of consecutive batches, as in `features`, and their labels (C, size)."""
        labels = torch.split(self.labels(sites, rows), size, 1)
        return zip(self.features(sites, rows, size), labels, strict=True)

    def _pool_of(self, sites: Sequence[Site]) -> _Pool:
        """Return the pool of the sites, from the last call if its sites were the same."""
        if self._pool is None or self._pool.sites != sites:
            self._pool = _Pool(sites)
        return self._pool

    def _from_all(self, pool: _Pool, rows: Indices, size: int) -> Iterator[Tensor]:
        """Gather batch by batch for all sites at once, to use a batch while it is in the processor's cache."""
        like, count = pool.features, len(rows)
        by_batch = (rows + pool.starts).reshape(count, -1, size).swapaxes(0, 1).reshape(-1, count * size)
        block = self._take((count, size, *like.shape[1:]), like)
        for some in on_device(by_batch, like.device):
            torch.index_select(like, 0, some, out=block.flatten(0, 1))
            yield block

    def _from_each(self, pool: _Pool, rows: Indices, size: int) -> Iterator[Tensor]:
        """Gather all batches site by site."""
        like = pool.sites[0].features
        block = self._take((*rows.shape, *like.shape[1:]), like)
        for site, some, out in zip(pool.sites, on_device(rows, like.device), block, strict=True):
            torch.index_select(site.features, 0, some, out=out)
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
        self._most = max(lengths)

    def is_small(self, rows: Indices) -> bool:
        """Return whether no site has more rows than are drawn from it (C, n), so concatenation is cheap."""
        drawn: int = rows.shape[1]
        return self._most <= drawn

    @cached_property
    def features(self) -> Tensor:
        return torch.cat([site.features for site in self.sites])

    @cached_property
    def labels(self) -> Tensor:
        return torch.cat([site.labels for site in self.sites])
