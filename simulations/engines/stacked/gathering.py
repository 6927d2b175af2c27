"""Rows of many clients' sites, gathered for several local steps at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from problems.sampling import Indices
from problems.site import Site

# bytes of the features that are gathered at once
GATHERED = 2**25


class Gatherer:
    """Gathers into the same memory each time, since new memory costs as much as filling it."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None

    def features(self, sites: Sequence[Site], rows: Sequence[Indices], size: int) -> Iterator[Tensor]:
        """The features (C, size, *shape) of consecutive batches; valid until the next is asked for.

        Args:
            rows: for each site the indices (K size,) of the rows of K batches, one batch after another.
        """
        like = sites[0].features
        indices = [torch.from_numpy(one).to(like.device) for one in rows]
        total, a_batch = len(indices[0]), len(sites) * size * like[0].numel() * like.element_size()
        length = max(GATHERED // max(a_batch, 1), 1) * size
        block = self._take((len(sites), min(length, total), *like.shape[1:]), like)
        for start in range(0, total, length):
            for place, site in enumerate(sites):
                some = indices[place][start : start + length]
                torch.index_select(site.features, 0, some, out=block[place, : len(some)])
            for begin in range(0, min(length, total - start), size):
                yield block[:, begin : begin + size]

    def batches(self, sites: Sequence[Site], rows: Sequence[Indices], size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The features (C, size, *shape) of consecutive batches, as in `features`, with their labels (C, size)."""
        labels = torch.split(gather_labels(sites, rows), size, 1)
        return zip(self.features(sites, rows, size), labels, strict=True)

    def _take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        count, known = math.prod(shape), self._memory
        if known is None or known.dtype != like.dtype or known.device != like.device or len(known) < count:
            known = self._memory = like.new_empty(count)
        return known[:count].view(shape)


def gather_labels(sites: Sequence[Site], rows: Sequence[Indices]) -> Tensor:
    """The labels (C, n) of rows, of which there are n for each site."""
    like = sites[0].labels
    labels = like.new_empty((len(sites), len(rows[0])))
    for place, (site, some) in enumerate(zip(sites, rows, strict=True)):
        torch.index_select(site.labels, 0, torch.from_numpy(some).to(like.device), out=labels[place])
    return labels
