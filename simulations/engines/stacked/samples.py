"""How clients of the methods on single samples are stacked: of `methods.samples`, with or without a penalty."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import Tensor

from methods.method import Task
from methods.penalised import PenalisedObjective
from methods.samples import Batch, SampleObjective, make_sampler
from problems.penalties import L1, Box, ElasticNet, NoPenalty, OnParameters, Penalty, SquaredL2
from simulations.engines.stacked.networks import StackedNetwork
from simulations.engines.stacked.stacking import Stacking, Tasks, batch_size
from simulations.engines.stacked.streams import draw_rows

# penalties whose prox treats every coordinate by itself, so that it takes a block (C, d) as it is
BY_COORDINATE = (NoPenalty, L1, SquaredL2, ElasticNet, Box)


class SampleStacking(Stacking):
    """Stacks clients whose batches have one shape, if all of them draw batches or none does."""

    objectives = SampleObjective, PenalisedObjective

    def shape(self, task: Task[Any, Any]) -> Hashable:
        size = batch_size(task.site, task.training)
        return size < len(task.site), size, *task.site.features.shape[1:]

    def join(self, tasks: Tasks, network: StackedNetwork) -> Task[Any, Any]:
        together = super().join(tasks, network)
        if isinstance(together.f, PenalisedObjective):
            together.f.penalty = StackedPenalty(together.f.penalty)  # type: ignore[assignment]
        return together

    def batches(self, tasks: Tasks, downs: object, draw: object) -> Iterator[Batch]:
        """Features (C, b, *shape) and labels (C, b)."""
        sites = [task.site for task in tasks]
        size = batch_size(sites[0], tasks[0].training)
        if size == len(sites[0]):
            whole = torch.stack([site.features for site in sites]), torch.stack([site.labels for site in sites])
            yield from [whole] * len(tasks[0].iterations)
            return
        rows = draw_rows([make_sampler(task) for task in tasks], tasks[0].iterations)
        yield from self.gatherers[0].batches(sites, rows, size)


class StackedPenalty:
    """The prox of a penalty for the points of many clients.

    Args:
        penalty: Of one point (d,).
    """

    def __init__(self, penalty: Penalty) -> None:
        self.parts: list[tuple[Any, Penalty]] = [(slice(None), penalty)]
        self.free: list[slice] = []
        if isinstance(penalty, OnParameters):
            self.parts, self.free = penalty.parts, penalty.free

    def prox(self, x: Tensor, step: float, *, out: Tensor) -> Tensor:
        """Return the prox of every row of a block.

        Args:
            x: (C, d).
            out: (C, d) receives the result, and may be x.
        """
        for indices, part in self.parts:
            chosen = x[:, indices]
            if isinstance(part, BY_COORDINATE):
                out[:, indices] = part.prox(chosen, step)
            else:
                out[:, indices] = torch.stack([part.prox(point, step) for point in chosen])
        if out is not x:
            for free in self.free:
                out[:, free] = x[:, free]
        return out
