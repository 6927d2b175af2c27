"""The data of many clients as one site, from which a method draws the batches of all clients at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from problems.randomness import Purpose
from problems.sampling import Indices
from problems.site import Site
from simulations.engines.stacked.carries import NotAlikeError
from simulations.engines.stacked.gathering import Gatherer
from simulations.engines.stacked.streams import draw_rows

# features (C, b, *shape) or `PickedRows`, and labels (C, b)
Batch = tuple[Any, Tensor]


class StackedSite:
    """The part of the interface of `problems.site.Site` that methods need to draw batches.

    Args:
        sites: The data of C clients, whose batches have one shape.
        steps: The number of local steps of a round.
        gatherers: The gatherers of the batches for `Purpose.SAMPLES` and for any other purpose.
        picked: Whether features are `PickedRows` if possible, for linear models.
    """

    def __init__(
        self, sites: Sequence[Site], steps: int, gatherers: tuple[Gatherer, Gatherer], *, picked: bool
    ) -> None:
        self.sites, self.steps, self.gatherers, self.picked = sites, steps, gatherers, picked
        self.everyone = [site.everyone for site in sites]
        self._samplers: dict[Gatherer, StackedSampler] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotAlikeError(f"a stack of sites has no {name}")

    def is_one_batch(self, batch_size: int) -> bool:
        """Return whether every batch of every client is its whole site."""
        return all(site.is_one_batch(batch_size) for site in self.sites)

    @cached_property
    def batch(self) -> Batch:
        """All rows of all clients, which have equally many."""
        features, labels = (torch.stack(parts) for parts in zip(*(site.batch for site in self.sites), strict=True))
        return features, labels

    def sampler(
        self, indices: Sequence[Indices], batch_size: int, seed: int, purpose: Purpose, end: int | None = None
    ) -> StackedSampler:
        """Return the batches of all clients, the same object for equal arguments.

        Args:
            indices: The indices of each client's rows, `everyone`.
            batch_size: The number of rows in a batch. 0: all rows.
            seed: The run's seed.
            purpose: The purpose of the batches.
            end: Without effect.

        Raises:
            NotAlikeError: The indices are others, or a gatherer already has another kind of batches.
        """
        gatherer, address = self.gatherers[purpose != Purpose.SAMPLES], (batch_size, seed, purpose)
        if gatherer not in self._samplers:
            self._samplers[gatherer] = StackedSampler(self, gatherer, address)
        if indices is not self.everyone or self._samplers[gatherer].address != address:
            raise NotAlikeError("a stack of sites draws from all rows, and two kinds of batches at most")
        return self._samplers[gatherer]

    def samples(self, batch: Batch) -> Batch:
        """Return the batch, which has its rows already."""
        return batch


class StackedSampler:
    """Consecutive batches of many clients, like `problems.sampling.EpochSampler`. The next batch overwrites the last.

    Args:
        site: The clients' data.
        gatherer: The gatherer of the batches.
        address: The number of rows in a batch, the run's seed, and the purpose of the batches.
    """

    def __init__(self, site: StackedSite, gatherer: Gatherer, address: tuple[int, int, Purpose]) -> None:
        self.samplers = [one.sampler(one.everyone, *address) for one in site.sites]
        self.site, self.gatherer, self.address = site, gatherer, address
        self._position = -1
        self._batch: Batch | None = None
        self._ahead: Iterator[Batch] = iter(())

    def batch(self, position: int) -> Batch:
        """Return the batches number ``position``, counted from 0 over the whole run."""
        if self._batch is None or position != self._position:
            self._batch = next(self._ahead, None) if position == self._position + 1 else None
            if self._batch is None:
                self._ahead = self._draw(range(position, position + self.site.steps))
                self._batch = next(self._ahead)
            self._position = position
        assert self._batch is not None
        return self._batch

    def _draw(self, numbers: range) -> Iterator[Batch]:
        """Yield batches of consecutive numbers."""
        sites, size = self.site.sites, self.samplers[0].batch_size
        return self.gatherer.batches(sites, draw_rows(self.samplers, numbers), size, picked=self.site.picked)
