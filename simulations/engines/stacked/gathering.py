"""Rows of many clients' sites, gathered for several local steps at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from problems.sampling import Indices, on_device
from problems.site import Site

# bytes of the features that are gathered at once
GATHERED = 2**25


class Gatherer:
    """Gathers into the same memory each time, since new memory costs as much as filling it."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None

    def features(self, sites: Sequence[Site], rows: Indices, size: int) -> Iterator[Tensor]:
        """The features (C, size, *shape) of consecutive batches; valid until the next is asked for.

        Args:
            rows: (C, K size) for each site the rows of K batches, one batch after another.
        """
        like = sites[0].features
        a_batch = len(sites) * size * math.prod(like.shape[1:]) * like.element_size()
        length = max(GATHERED // max(a_batch, 1), 1) * size
        for start in range(0, rows.shape[1], length):
            some = rows[:, start : start + length]
            yield from (self._from_all if _are_small(sites, some) else self._from_each)(sites, some, size)

    def batches(self, sites: Sequence[Site], rows: Indices, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The features (C, size, *shape) of consecutive batches, as in `features`, with their labels (C, size)."""
        labels = torch.split(gather_labels(sites, rows), size, 1)
        return zip(self.features(sites, rows, size), labels, strict=True)

    def _from_all(self, sites: Sequence[Site], rows: Indices, size: int) -> Iterator[Tensor]:
        """Gather batch by batch for all sites at once, so that a batch is still in the processor's cache when used."""
        like, everything = sites[0].features, torch.cat([site.features for site in sites])
        by_batch = _number(sites, rows).reshape(len(sites), -1, size).swapaxes(0, 1).reshape(-1, len(sites) * size)
        block = self._take((len(sites), size, *like.shape[1:]), like)
        for some in on_device(by_batch, like.device):
            torch.index_select(everything, 0, some, out=block.flatten(0, 1))
            yield block

    def _from_each(self, sites: Sequence[Site], rows: Indices, size: int) -> Iterator[Tensor]:
        """Gather all batches site by site."""
        like = sites[0].features
        block = self._take((*rows.shape, *like.shape[1:]), like)
        for site, some, out in zip(sites, on_device(rows, like.device), block, strict=True):
            torch.index_select(site.features, 0, some, out=out)
        yield from torch.split(block, size, 1)

    def _take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        count, known = math.prod(shape), self._memory
        if known is None or known.dtype != like.dtype or known.device != like.device or len(known) < count:
            known = self._memory = like.new_empty(count)
        return known[:count].view(shape)


def gather_labels(sites: Sequence[Site], rows: Indices) -> Tensor:
    """The labels (C, n) of rows (C, n)."""
    like = sites[0].labels
    if _are_small(sites, rows):
        return torch.cat([site.labels for site in sites])[on_device(_number(sites, rows), like.device)]
    pairs = zip(sites, on_device(rows, like.device), strict=True)
    return torch.stack([torch.index_select(site.labels, 0, some) for site, some in pairs])


def _are_small(sites: Sequence[Site], rows: Indices) -> bool:
    """Whether no site has more rows than are drawn from it, so that all sites may be put together."""
    drawn: int = rows.shape[1]
    return max(map(len, sites)) <= drawn


def _number(sites: Sequence[Site], rows: Indices) -> Indices:
    """Rows (C, n) of each site as rows of all sites together."""
    numbered: Indices = rows + np.cumsum([0, *map(len, sites[:-1])])[:, np.newaxis]
    return numbered
