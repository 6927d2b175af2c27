"""LocalSGDAM's client half (Sharma, Panda, Joshi, Varshney, "Federated Minimax Optimization: Improved Convergence
Analyses and Algorithms", ICML 2022), in the order of LocalSCGDAM's Algorithm 1: first the point, then the momentum."""

from __future__ import annotations

import torch
from flwr.common import Scalar
from torch import Tensor

from clients.minimax import MinimaxClient
from payloads.record import FloatArray
from payloads.sgdam import SaddleMomentum, SGDAMDown, SGDAMSettings
from problems.minimax.oracle import direction


class LocalSGDAMClient(MinimaxClient):
    """K steps along the momentum m = (u, v). The learning rate counts by its drops only: a step's size is
    gamma * eta * learning_rate_at(t) / learning_rate.

    Iteration t, counted over the run, takes the gradient of batch t + 1 at the point it has moved to; batch 0 makes
    the first momentum.
    """

    down = SGDAMDown
    up = SaddleMomentum

    settings_type = SGDAMSettings
    settings: SGDAMSettings

    def fit(
        self, parameters: list[FloatArray], config: dict[str, Scalar]
    ) -> tuple[list[FloatArray], int, dict[str, Scalar]]:
        server_round = self.begin(parameters, config)
        inbox = self.inbox or SGDAMDown()
        self.inform(inbox.population)
        momentum = self.update(server_round, inbox.momentum)
        self.outbox = SaddleMomentum(momentum=momentum.cpu().numpy())
        return self.fitted()

    def update(self, server_round: int, received: FloatArray | None) -> Tensor:
        """Lines 2 and 4, K times; returns the momentum (d,)."""
        oracle, sgdam, training, sampler = self.model, self.settings, self.training, self.sampler()
        point, iterations = oracle.parameters, self.local_iterations(server_round)
        signs = direction(oracle, sgdam.gamma_x * sgdam.eta, sgdam.gamma_y * sgdam.eta)
        weight = torch.full_like(point, sgdam.beta_x * sgdam.eta)  # (d,) of a new gradient
        weight[oracle.primal_dim :] = sgdam.beta_y * sgdam.eta
        kept = 1 - weight
        first = iterations[0]
        momentum = oracle.gradient(sampler.batch(first)).clone() if received is None else self.vector(received)
        for iteration in iterations:
            drop = training.learning_rate_at(iteration) / training.learning_rate
            point.addcmul_(signs, momentum, value=drop)
            gradient = oracle.gradient(sampler.batch(iteration + 1))
            momentum.mul_(kept).addcmul_(weight, gradient)
        return momentum
