"""Stacking for the methods whose loss is a mean over samples, with or without a penalty (`methods.samples`)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from methods.method import Task
from methods.penalised import PenalisedObjective
from methods.samples import HazardObjective, SampleObjective
from problems.penalties import L1, Box, ElasticNet, NoPenalty, OnParameters, Penalty, SquaredL2
from problems.site import Site
from simulations.engines.stacked.networks import StackedNetwork
from simulations.engines.stacked.stacking import Stacking, batch_size

# penalties whose proximal map treats every coordinate separately, so it also works on a block (C, d)
BY_COORDINATE = (NoPenalty, L1, SquaredL2, ElasticNet, Box)


class SampleStacking(Stacking):
    """The stacking of clients with equal batch shapes, if all clients draw batches or all use all their rows."""

    objectives = SampleObjective, HazardObjective, PenalisedObjective

    def shape(self, task: Task[Any, Any]) -> Hashable:
        size = batch_size(task.site, task.training)
        return size < len(task.site), size, *task.site.features.shape[1:]

    def join(self, task: Task[Any, Any], sites: Sequence[Site], network: StackedNetwork) -> Task[Any, Any]:
        together = super().join(task, sites, network)
        if isinstance(together.f, PenalisedObjective):
            together.f.penalty = StackedPenalty(together.f.penalty)  # type: ignore[assignment]
        return together


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
