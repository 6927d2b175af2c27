"""Stacking for the minimax methods on the AUC (`methods.minimax`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from methods.method import Task
from methods.samples import make_sampler
from problems.minimax import AUCOracle, CompositionalOracle
from problems.minimax.compositional import Pull
from problems.sampling import Indices
from problems.site import Site
from simulations.engines.stacked.carries import stack
from simulations.engines.stacked.networks import StackedNetwork
from simulations.engines.stacked.stacking import Stacking, Tasks, batch_size
from simulations.engines.stacked.streams import draw_epochs

# a method's `ClientHalf.batches`
Draw = Callable[[Any, Any], Iterator[tuple[float, Any]]]


class StackedOracle(AUCOracle):
    """The objectives f_i of many clients as one oracle. A batch is features (C, b, *shape) and labels (C, b).

    Args:
        oracles: The clients' oracles, with the clients' weights and shares of positives in this round.
        network: The network with all clients' weights.
    """

    def __init__(self, oracles: Sequence[AUCOracle], network: StackedNetwork) -> None:
        vars(self).update(vars(oracles[0]))
        weights = [oracle.weight for oracle in oracles]
        self.weight: Any = torch.tensor(weights, dtype=self.parameters.dtype, device=self.device).unsqueeze(1)
        self.stacked: Any = network

    def gradient(self, z: Tensor, rows: Any) -> Tensor:
        """Return the (C, d) gradients at z (C, d), each on its client's batch. The next call overwrites the result."""
        return self._gradient(self.stacked, z, *rows)


class StackedComposition(StackedOracle, CompositionalOracle):
    """The objectives f_i and the inner maps g_i of many clients' compositional problems as one oracle."""

    def descend(self, z: Tensor, rows: Any, rho: float, *, exact: bool = True) -> tuple[Tensor, Pull]:
        """Like `CompositionalOracle.descend`, for points (C, d)."""
        features, labels = rows
        logits, pull = self.stacked.forward(z, features)
        errors = self._errors(logits, labels)
        point = torch.sub(z, pull(errors), alpha=rho)
        if not (exact and rho > 0):
            return point, lambda q: q
        chances = torch.sigmoid(logits)
        curvatures = self.weight * chances * (1 - chances) / labels.shape[-1]

        def pull_back(q: Tensor) -> Tensor:
            return q.sub_(self.stacked.curve(z, features, q, errors, curvatures), alpha=rho)

        return point, pull_back

    def outer_gradient(self, h: Tensor, rows: Any) -> Tensor:
        """Return the (C, d) gradients of f in h and in y. The next call overwrites the result."""
        return self.gradient(h, rows)


class SaddleStacking(Stacking):
    """The stacking of clients whose batches have one shape."""

    objectives = AUCOracle, CompositionalOracle

    def shape(self, task: Task[Any, Any]) -> Hashable:
        return batch_size(task.site, task.training), *task.site.features.shape[1:]

    def stack(self, carries: Sequence[Any], together: Task[Any, Any]) -> Any:
        kind = StackedComposition if isinstance(carries[0].f, CompositionalOracle) else StackedOracle
        f = kind([carry.f for carry in carries], together.f.model)
        return replace(stack([replace(carry, f=None) for carry in carries]), f=f)

    def batches(self, tasks: Tasks, downs: Sequence[Any], draw: Draw) -> Iterator[Any]:
        """Yield each method's batch with features (C, b, *shape) and labels (C, b) in place of the row numbers."""
        sites, iterations = [task.site for task in tasks], tasks[0].iterations
        samplers = [sampler for task in tasks if (sampler := make_sampler(task)).batch_size]
        if samplers:
            numbers = range(iterations.start, iterations.stop + 1)
            for sampler, (epochs, orders) in zip(samplers, draw_epochs(samplers, numbers), strict=True):
                sampler.drawn = dict(zip(epochs, orders, strict=True))
        drawn: list[list[Any]] = [
            [batch for _, batch in draw(task, down)] for task, down in zip(tasks, downs, strict=True)
        ]
        for sampler in samplers:
            sampler.drawn = {}
        if not drawn[0]:
            return
        first = drawn[0][0]
        if isinstance(first, np.ndarray):
            yield from self._gather(0, sites, drawn)
            return
        # a named tuple, some of whose fields are rows
        names = [name for name, value in first._asdict().items() if isinstance(value, np.ndarray)]
        columns = [
            self._gather(side, sites, [[getattr(batch, name) for batch in batches] for batches in drawn])
            for side, name in enumerate(names)
        ]
        for batch, *stacked in zip(drawn[0], *columns, strict=True):
            yield batch._replace(**dict(zip(names, stacked, strict=True)))

    def _gather(self, side: int, sites: Sequence[Site], drawn: list[list[Indices]]) -> Iterator[tuple[Tensor, Tensor]]:
        rows = np.array(drawn)  # (C, K, b)
        return self.gatherers[side].batches(sites, rows.reshape(len(sites), -1), rows.shape[2])
