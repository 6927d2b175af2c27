"""Stacking for the methods whose loss is a mean over samples, with or without a penalty (`methods.samples`)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from methods.method import Task
from methods.penalised import PenalisedObjective
from methods.samples import Batch, HazardObjective, SampleObjective
from problems.penalties import L1, Box, ElasticNet, NoPenalty, OnParameters, Penalty, SquaredL2
from problems.randomness import Purpose
from problems.site import Site
from simulations.engines.stacked.networks import StackedNetwork
from simulations.engines.stacked.stacking import Stacking, Tasks, batch_size
from simulations.engines.stacked.streams import draw_rows

# penalties whose proximal map treats every coordinate separately, so it also works on a block (C, d)
BY_COORDINATE = (NoPenalty, L1, SquaredL2, ElasticNet, Box)


class SampleStacking(Stacking):
    """The stacking of clients with equal batch shapes, if all clients draw batches or all use all their rows."""

    objectives = SampleObjective, HazardObjective, PenalisedObjective

    def shape(self, task: Task[Any, Any]) -> Hashable:
        size = batch_size(task.site, task.training)
        return size < len(task.site), size, *task.site.features.shape[1:]

    def join(self, tasks: Tasks, network: StackedNetwork) -> Task[Any, Any]:
        together = super().join(tasks, network)
        if isinstance(together.f, PenalisedObjective):
            together.f.penalty = StackedPenalty(together.f.penalty)  # type: ignore[assignment]
        return together

    def batches(self, tasks: Tasks, downs: object, draw: object) -> Iterator[Batch]:
        """Yield features, (C, b, *shape) or `PickedRows`, and labels (C, b)."""
        return self.draw(tasks[0], [task.site for task in tasks], None, draw)

    def draw(self, task: Task[Any, Any], sites: Sequence[Site], down: object, draw: object) -> Iterator[Batch]:
        """Yield features, (C, b, *shape) or `PickedRows`, and labels (C, b)."""
        training, size = task.training, batch_size(sites[0], task.training)
        if size == len(sites[0]):
            whole = torch.stack([site.features for site in sites]), torch.stack([site.outcomes for site in sites])
            yield from [whole] * len(task.iterations)
            return
        samplers = [site.sampler(site.everyone, size, training.seed, Purpose.SAMPLES) for site in sites]
        linear = len(task.f.model.dense.shapes) == 1
        yield from self.gatherers[0].batches(sites, draw_rows(samplers, task.iterations), size, picked=linear)


class StackedPenalty:
    """The proximal map of a penalty for the points of many clients.

    Args:
        penalty: The penalty of one client's point (d,).
    """

    def __init__(self, penalty: Penalty) -> None:
        self.parts: list[tuple[Any, Penalty]] = [(slice(None), penalty)]
        self.free: list[slice] = []
        if isinstance(penalty, OnParameters):
            self.parts, self.free = penalty.parts, penalty.free

    def prox(self, x: Tensor, step: float, *, out: Tensor) -> Tensor:
        """Return the proximal map of each row of a block.

        Args:
            x: The (C, d) block.
            step: The factor of the penalty.
            out: The (C, d) block for the result, which may be x.
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
