"""Stacking for the minimax methods on the AUC (`methods.minimax`)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from methods.method import Task, as_tensor
from payloads.record import FloatArray
from problems.minimax import AUCOracle, CompositionalOracle
from problems.minimax.compositional import Pull
from problems.site import Site
from simulations.engines.stacked.carries import stack
from simulations.engines.stacked.networks import StackedNetwork
from simulations.engines.stacked.stacking import Stacking, batch_size


class StackedOracle(AUCOracle):
    """The objectives f_i of C clients as one oracle. In place of row numbers it takes features and labels (C, b).

    Args:
        oracle: The oracle of one client.
        sizes: The numbers of rows of all clients.
        network: The network with all clients' weights.
    """

    def __init__(self, oracle: AUCOracle, sizes: Sequence[int], network: StackedNetwork) -> None:
        vars(self).update(vars(oracle))
        self.parameters = oracle.parameters.clone()  # the next message overwrites the client's point
        self.num_samples: Any = torch.tensor(sizes, dtype=torch.float64).unsqueeze(1)
        self.stacked: Any = network
        self._weighed: StackedOracle | None = None

    def weigh(self, prior: float, weight: Any = 1.0) -> Self:
        """Return a copy with another prior and weights (C, 1), the same object for all clients of a round."""
        if self._weighed is None or self._weighed.prior != prior:
            weights: Any = torch.as_tensor(weight).to(self.parameters)
            self._weighed = super().weigh(prior, weights)
        return self._weighed  # type: ignore[return-value]

    def gradient(self, z: Tensor, rows: Any) -> Tensor:
        """Return the (C, d) gradients at z (C, d), each on its client's batch. The next call overwrites the result."""
        return self._gradient(self.stacked, z, *rows)

    def batch_gradients(self, z: Tensor, batches: object) -> None:
        """Return None: the gradients of several batches are computed one by one."""


class StackedComposition(StackedOracle, CompositionalOracle):
    """The objectives f_i and the inner maps g_i of many clients' compositional problems as one oracle."""

    def load_inner(self, h: FloatArray | None, buffers: FloatArray | None) -> Tensor:
        """Return the points (h, y) of the second networks of all clients, as a view of one point (d,)."""
        assert buffers is None
        point = self.parameters if h is None else self.parameters.clone()
        if h is not None:
            point[: self.primal_dim] = as_tensor(h, point)
        return point.expand(len(self.num_samples), -1)

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

    def join(self, task: Task[Any, Any], sites: Sequence[Site], network: StackedNetwork) -> Task[Any, Any]:
        together = super().join(task, sites, network)
        sizes, site = [len(one) for one in sites], together.site
        if not isinstance(task.f, CompositionalOracle):
            return replace(together, f=StackedOracle(task.f, sizes, network))
        site.picked = False  # type: ignore[attr-defined]  # the second derivatives need the rows
        return replace(together, f=StackedComposition(task.f, sizes, network))

    def stack(self, carries: Sequence[Any], together: Task[Any, Any]) -> Any:
        f, weights = carries[0].f, [[carry.f.weight] for carry in carries]
        weighed = together.f.weigh(f.prior, torch.tensor(weights, dtype=torch.float64))
        return replace(stack([replace(carry, f=None) for carry in carries]), f=weighed)
