"""LocalSCGDAM's client half (Zhang, Zhang, Yang, Souvenir, Gao, "Federated Compositional Deep AUC Maximization",
NeurIPS 2023, Algorithm 1); `payloads.scgdam` has the symbols."""

from __future__ import annotations

from typing import ClassVar

from flwr.common import Scalar
from torch import Tensor

from clients.base import Site
from clients.minimax import MinimaxClient
from payloads.record import FloatArray
from payloads.scgdam import CompositionalUp, SCGDAMDown, SCGDAMSettings
from payloads.settings import Settings, TrainingSettings
from problems.minimax import COMPOSITIONAL_AUC, CompositionalOracle, Oracle
from problems.randomness import Purpose
from problems.sampling import EpochSampler


class LocalSCGDAMClient(MinimaxClient):
    """p steps of x, y, h, u and v. The learning rate counts by its drops only: a step's size is
    gamma * eta * learning_rate_at(t) / learning_rate.

    Iteration t, counted over the run, takes g, its Hessian and f from batch t + 1; batch 0 makes h_0, u_0 and v_0.
    """

    down = SCGDAMDown
    up = CompositionalUp
    default_loss: ClassVar[str] = COMPOSITIONAL_AUC

    settings_type = SCGDAMSettings
    settings: SCGDAMSettings

    def __init__(self, site: Site, model: Oracle, training: TrainingSettings, settings: Settings | None = None) -> None:
        super().__init__(site, model, training, settings)
        if not isinstance(model, CompositionalOracle):
            raise TypeError(f"LocalSCGDAM needs a CompositionalOracle, got {type(model).__name__}")
        self.problem = model
        self.batches = self.sampler()
        self.outer_batches = self.outer_sampler() if self.settings.independent_batches else None

    def outer_sampler(self) -> EpochSampler:
        """Batches for f alone, drawn independently of those for g."""
        site, training = self.site, self.training
        return site.sampler(site.everyone, training.batch_size, training.seed, Purpose.INDEPENDENT_SAMPLES)

    def fit(
        self, parameters: list[FloatArray], config: dict[str, Scalar]
    ) -> tuple[list[FloatArray], int, dict[str, Scalar]]:
        server_round = self.begin(parameters, config)
        inbox = self.inbox or SCGDAMDown()
        self.inform(inbox.population)
        self.problem.load_inner(inbox.inner, inbox.inner_buffers)
        momentum = self.update(server_round, inbox.momentum)
        inner, buffers = self.problem.inner_arrays()
        self.outbox = CompositionalUp(inner=inner, momentum=momentum.cpu().numpy(), inner_buffers=buffers)
        return self.fitted()

    def update(self, server_round: int, received: FloatArray | None) -> Tensor:
        """Lines 2 to 4, p times; returns (u, v) as one vector (d,)."""
        problem, scgdam, training = self.problem, self.settings, self.training
        eta, primal = scgdam.eta, problem.primal_dim
        iterations = self.local_iterations(server_round)
        momentum = self.compose(iterations[0], 1.0).clone() if received is None else self.vector(received)
        x, y = problem.parameters[:primal], problem.parameters[primal:]
        u, v = momentum[:primal], momentum[primal:]
        for t in iterations:
            drop = training.learning_rate_at(t) / training.learning_rate
            x.add_(u, alpha=-scgdam.gamma_x * eta * drop)
            y.add_(v, alpha=scgdam.gamma_y * eta * drop)
            gradient = self.compose(t + 1, scgdam.alpha * eta)
            u.lerp_(gradient[:primal], scgdam.beta_x * eta)  # u <- (1 - beta eta) u + beta eta gradient
            v.lerp_(gradient[primal:], scgdam.beta_y * eta)
        return momentum

    def compose(self, position: int, weight: float) -> Tensor:
        """Move h by a batch's g, which weighs ``weight``; the batch's gradients at the new h, (d,)."""
        outer = None if self.outer_batches is None else self.outer_batches.batch(position)
        exact = self.settings.hessian == "exact"
        return self.problem.compose(
            self.batches.batch(position), weight, self.settings.rho, exact=exact, outer_rows=outer
        )
