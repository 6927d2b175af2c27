"""Pairwise losses on one site's own pairs, and what every pairwise client shares.

`LocalPairClient` is FedX's "Local Pair" baseline (Guo, Jin, Luo, Yang, Section 4): the same loss, pairs inside the
site only, both halves of every pair active. On the union of all data it is the centralised reference: mini-batch
pairwise SGD for linear f, and SOX (Wang and Yang 2022) for non-linear f.

| paper              | here                                             |
|--------------------|--------------------------------------------------|
| S_1^i, S_2^i       | positives and partners of the `Site`              |
| u(z), equation (8) | `Estimates`, kept as `InnerEstimates` (log u for ``kl-opauc``) |
| G                  | the momentum, `momentum_step`                    |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from flwr.common import Scalar
from torch import Tensor

from clients.base import ScoringClient, Site
from payloads.fedx import FedXSettings, InnerEstimates, Momentum
from payloads.record import FloatArray, Payload
from payloads.settings import Settings, TrainingSettings
from problems.models import FlatModel
from problems.objectives.pairwise import PairwiseObjective, make_objective, pairwise_score
from problems.randomness import Purpose
from problems.sampling import EpochSampler, Indices, on_device


@dataclass(frozen=True)
class Estimates:
    """u of every local positive (n, k), and which have been observed (n,)."""

    u: Tensor
    observed: Tensor

    def update(self, objective: PairwiseObjective, rows: Tensor, new: Tensor, gamma: float) -> Tensor:
        """Average ``new`` (b, k) into the rows, equation (8), in place; returns the rows' u (b, k)."""
        averaged = objective.average(self.u[rows], new, gamma)
        current = torch.where(self.observed[rows, None], averaged, new)
        self.u[rows] = current
        self.observed[rows] = True
        return current


def local_pair_slopes(
    objective: PairwiseObjective, a: Tensor, b: Tensor, labels: Tensor | None, u: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Factors of grad h(z) (n,) and grad h(z') (m,) when both halves of every pair are active."""
    s = b[None, :] - a[:, None]
    slope = objective.slope(s, labels, u) / s.numel()  # type: ignore[arg-type]
    return -slope.sum(dim=1), slope.sum(dim=0)


def momentum_step(model: FlatModel, momentum: Tensor | None, gradient: Tensor, beta: float, step: float) -> Tensor:
    """G <- (1 - beta) * G + beta * gradient (the first G is the first gradient), w <- w - step * G; returns G."""
    momentum = gradient.clone() if momentum is None else momentum.lerp_(gradient, beta)
    model.parameters.add_(momentum, alpha=-step)
    return momentum


class PairwiseClient(ScoringClient):
    """What FedX and its local counterpart share: the objective, two samplers (one a class) and the u table."""

    memory: ClassVar[type[Payload] | None] = InnerEstimates

    settings_type = FedXSettings
    settings: FedXSettings

    def __init__(
        self, site: Site, model: FlatModel, training: TrainingSettings, settings: Settings | None = None
    ) -> None:
        super().__init__(site, model, training, settings)
        self.objective = make_objective(self.loss, **self.settings.objective_options)
        self.score_of = pairwise_score(self.training.score, self.loss).value
        self.partners: Indices = site.everyone if self.objective.partners == "all" else site.negatives
        # u is kept by a positive's place among the positives
        self.place = np.full(len(site), -1)
        self.place[site.positives] = np.arange(len(site.positives))

    def samplers(self, positives: Purpose, partners: Purpose) -> tuple[EpochSampler, EpochSampler]:
        """Two samplers, one a class, each reshuffled on its own."""
        site, settings, seed = self.site, self.settings, self.training.seed
        return (
            site.sampler(site.positives, settings.positive_batch_size, seed, positives),
            site.sampler(self.partners, settings.negative_batch_size, seed, partners),
        )

    def forward(self, positives: Indices, partners: Indices) -> tuple[Tensor, Tensor, Tensor]:
        """One pass over both batches: (n + m,) scores with their graph, and both parts detached in float64."""
        scores = self.score_of(self.model.scores(self.site.rows(np.concatenate([positives, partners]))))
        fixed = scores.detach().double()
        return scores, fixed[: len(positives)], fixed[len(positives) :]

    def labels(self, indices: Indices) -> Tensor | None:
        """(m,) labels of partners in float64 where the objective asks for them."""
        if self.objective.partners == "negatives":
            return None
        return self.site.targets(indices).double()

    def gradient(self, scores: Tensor, *slopes: Tensor) -> Tensor:
        """(d,) the slopes of all rows pulled back to the parameters."""
        return self.model.vjp(scores, torch.cat(slopes).to(scores.dtype))

    def recall(self) -> Estimates:
        """The u table on the device, copied out of the client's state, or a fresh one."""
        count = len(self.site.positives)
        device = self.site.features.device
        if self.state is None:
            u = torch.zeros((count, self.objective.inner_dim), dtype=torch.float64, device=device)
            return Estimates(u, torch.zeros(count, dtype=torch.bool, device=device))
        self.state.check({"n": count, "k": self.objective.inner_dim})
        u = torch.tensor(self.state.u, dtype=torch.float64, device=device)
        return Estimates(u, torch.tensor(self.state.observed, device=device))

    def remember(self, estimates: Estimates) -> None:
        """Keep the u table as the client's state."""
        self.state = InnerEstimates(u=estimates.u.cpu().numpy(), observed=estimates.observed.cpu().numpy())

    def table_rows(self, positives: Indices) -> Tensor:
        """(n,) the places of some positives in the u table."""
        return on_device(self.place[positives], self.site.features.device)


class LocalPairClient(PairwiseClient):
    """The same loss on local pairs only: mini-batch pairwise SGD for linear f; u and momentum for non-linear f."""

    down = Momentum
    up = Momentum
    default_loss: ClassVar[str] = "kl-opauc"

    def fit(
        self, parameters: list[FloatArray], config: dict[str, Scalar]
    ) -> tuple[list[FloatArray], int, dict[str, Scalar]]:
        server_round = self.begin(parameters, config)
        tracks = not self.objective.linear
        estimates = self.recall() if tracks else None
        momentum = self.vector_or_none(self.inbox.momentum) if tracks and self.inbox is not None else None
        positives, partners = self.samplers(Purpose.POSITIVES, Purpose.PARTNERS)
        for iteration in self.local_iterations(server_round):
            first, second = positives.batch(iteration), partners.batch(iteration)
            if not len(first) or not len(second):
                break  # one class only: a site without a pair has nothing to learn from
            gradient = self.pair_gradient(first, second, estimates)
            step = self.training.learning_rate_at(iteration)
            if tracks:
                momentum = momentum_step(self.model, momentum, gradient, self.settings.beta, step)
            else:
                self.model.parameters.add_(gradient, alpha=-step)
        if estimates is not None:
            self.remember(estimates)
        self.outbox = Momentum(momentum=None if momentum is None else momentum.cpu().numpy())
        return self.fitted()

    def pair_gradient(self, first: Indices, second: Indices, estimates: Estimates | None) -> Tensor:
        """(d,) the gradient over all pairs of two batches, with u of the positives updated on the way."""
        scores, a, b = self.forward(first, second)
        labels = self.labels(second)
        u = None
        if estimates is not None:
            seen = self.objective.observe(b[None, :] - a[:, None], labels, None)
            u = estimates.update(self.objective, self.table_rows(first), seen, self.settings.gamma)
        return self.gradient(scores, *local_pair_slopes(self.objective, a, b, labels, u))
