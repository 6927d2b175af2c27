"""FedX's client half: Algorithms 1 and 2 of "FedX: Federated Learning for Compositional Pairwise Risk
Optimization" (Guo, Jin, Luo, Yang).

| paper                      | here                                                           |
|----------------------------|----------------------------------------------------------------|
| S_1^i, S_2^i               | positives and partners of the `Site`                           |
| H_{i,1}, H_{i,2}, U_i      | `FedXPredictions`, gathered over the round                     |
| B_{i,1}, B_{i,2}, C_i      | two `PoolQueue`s over the `FedXPool` that came down            |
| h_xi, (h_zeta, u_zeta)     | `Draw`: lazy partners; lazy positives with their u             |
| u(z), equation (8)         | `InnerEstimates` (log u for ``kl-opauc``)                      |
| G_{i,k,1} + G_{i,k,2}      | one vector-Jacobian product of both halves' slopes, (4)+(5), (9) |
| omega_1i, omega_2i         | ``positive_omega``, ``partner_omega``                          |

What differs from the boxes. Line 12 names the histories crosswise: the partner of an active positive comes from the
pool of partners, and of an active partner from the pool of positives. Both active batches go through the network in
one forward pass, so that batch normalisation sees the mixture and not one class at a time. The first visit of a
sample sets u to what it observes: the box's u = 0 would make f' infinite. Predictions of the scoring round have no u
yet; it is observed against the partners drawn with them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from flwr.common import Scalar
from numpy.typing import NDArray
from torch import Tensor

from clients.pairwise import Estimates, PairwiseClient, momentum_step
from payloads.fedx import SCORING, SCORING_ROUND, FedXPool, FedXPredictions, InnerEstimates
from payloads.record import FloatArray, Payload
from problems.objectives.pairwise import PairwiseObjective
from problems.randomness import Purpose, secret_normal, stream
from problems.sampling import EpochSampler, Indices, PoolQueue, on_device


@dataclass(frozen=True)
class Draw:
    """The lazy parts of one local step, taken from the pool. All (b,) but u (b, k); float64."""

    # positives: scores, weights, inner estimates, and which of these exist (None: all of them)
    positive_scores: Tensor
    positive_weights: Tensor
    u: Tensor | None
    tracked: Tensor | None
    # partners
    partner_scores: Tensor
    partner_weights: Tensor
    partner_labels: Tensor | None


def positive_slopes(
    objective: PairwiseObjective,
    scores: Tensor,
    draw: Draw,
    u: Tensor | None,
    omega: float,
) -> Tensor:
    """(b,) G_1's factors of grad h(z): omega * mean_j weight_j f'(u_i) d_1 l(a_i, lazy b_j) / b."""
    s = draw.partner_scores[None, :] - scores[:, None]  # (b, m)
    slope = objective.slope(s, draw.partner_labels, u)  # type: ignore[arg-type]
    return slope @ draw.partner_weights * (-omega / s.numel())


def partner_slopes(
    objective: PairwiseObjective,
    scores: Tensor,
    labels: Tensor | None,
    draw: Draw,
    omega: float,
    num_partners: float,
) -> Tensor:
    """(m,) G_2's factors of grad h(z'): omega * mean_i weight_i f'(lazy u_i) d_2 l(lazy a_i, b_j) / m."""
    s = scores[None, :] - draw.positive_scores[:, None]  # (b, m)
    slope = objective.slope(s, labels, draw.u, num_partners)  # type: ignore[arg-type]
    return draw.positive_weights @ slope * (omega / s.numel())


class History:
    """H_{i,1}, H_{i,2} and U_i of one round, in the order the steps made them."""

    def __init__(self) -> None:
        self.positives: list[Tensor] = []
        self.u: list[Tensor] = []
        self.partners: list[Tensor] = []
        self.labels: list[Tensor] = []

    def add(self, positives: Tensor, u: Tensor | None, partners: Tensor, labels: Tensor | None) -> None:
        self.positives.append(positives)
        self.partners.append(partners)
        if labels is not None:
            self.labels.append(labels)
        if u is not None:
            self.u.append(u)

    def predictions(self, dtype: np.dtype[np.floating]) -> FedXPredictions:
        """The round's record."""

        def join(parts: list[Tensor]) -> FloatArray:
            with np.errstate(over="ignore"):  # a diverged value becomes infinite, which the server names
                joined: FloatArray = torch.cat(parts).cpu().numpy().astype(dtype)
            return joined

        return FedXPredictions(
            positive_scores=join(self.positives),
            partner_scores=join(self.partners),
            partner_labels=join(self.labels) > 0.5 if self.labels else None,
            positive_u=join(self.u) if self.u else None,
        )


def subsample(predictions: FedXPredictions, size: int, rng: np.random.Generator) -> FedXPredictions:
    """A uniform subsample of at most ``size`` positives, each with its u, and as many partners."""

    def chosen(count: int) -> Indices:
        return np.arange(count) if count <= size else np.sort(rng.choice(count, size, replace=False))

    p, q = chosen(len(predictions.positive_scores)), chosen(len(predictions.partner_scores))
    return FedXPredictions(
        positive_scores=predictions.positive_scores[p],
        partner_scores=predictions.partner_scores[q],
        partner_labels=None if predictions.partner_labels is None else predictions.partner_labels[q],
        positive_u=None if predictions.positive_u is None else predictions.positive_u[p],
    )


def noised(predictions: FedXPredictions, deviation: float) -> FedXPredictions:
    """The predictions with Gaussian noise on every score, drawn by the system's generator.

    They have no u: it is a function of the exact score and of predictions that all know, and would undo the noise.
    """

    def blurred(scores: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):  # a value beyond the number type becomes infinite, which the server names
            blurred: FloatArray = (scores + deviation * secret_normal(len(scores))).astype(scores.dtype)
        return blurred

    return replace(
        predictions,
        positive_scores=blurred(predictions.positive_scores),
        partner_scores=blurred(predictions.partner_scores),
        positive_u=None,
    )


class Pool:
    """The pool that came down, walked as two queues in step."""

    def __init__(self, pool: FedXPool, client: PairwiseClient, server_round: int) -> None:
        def tensor(values: NDArray[Any]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=client.site.features.device)

        address = (client.site.partition_id, server_round)
        self.positives = PoolQueue(len(pool.positive_scores), client.training.seed, Purpose.POSITIVE_POOL, *address)
        self.partners = PoolQueue(len(pool.partner_scores), client.training.seed, Purpose.PARTNER_POOL, *address)
        runs = pool.positive_tracked
        tracked = None if runs is None or runs.all() else np.repeat(runs, pool.positive_lengths)
        self.all = Draw(
            tensor(pool.positive_scores),
            tensor(np.repeat(pool.positive_weights, pool.positive_lengths)),
            None if pool.positive_u is None else tensor(pool.positive_u),
            None if tracked is None else tensor(tracked).bool(),
            tensor(pool.partner_scores),
            tensor(np.repeat(pool.partner_weights, pool.partner_lengths)),
            None if pool.partner_labels is None else tensor(pool.partner_labels),
        )

    def draw(self, num_positives: int, num_partners: int) -> Draw:
        """Take the next entries of both queues."""
        device, everything = self.all.positive_scores.device, self.all
        p = on_device(self.positives.take(num_positives), device)
        q = on_device(self.partners.take(num_partners), device)
        return Draw(
            everything.positive_scores[p],
            everything.positive_weights[p],
            None if everything.u is None else everything.u[p],
            None if everything.tracked is None else everything.tracked[p],
            everything.partner_scores[q],
            everything.partner_weights[q],
            None if everything.partner_labels is None else everything.partner_labels[q],
        )


class FedX1Client(PairwiseClient):
    """Algorithm 1: linear f. Nothing is kept between rounds."""

    down = FedXPool
    up = FedXPredictions
    phases: ClassVar[dict[str, type[Payload]]] = {SCORING: FedXPredictions}
    memory: ClassVar[type[Payload] | None] = None
    default_loss: ClassVar[str] = "psm"
    momentum: Tensor | None = None

    def fit(
        self, parameters: list[FloatArray], config: dict[str, Scalar]
    ) -> tuple[list[FloatArray], int, dict[str, Scalar]]:
        server_round = self.begin(parameters, config)
        history = self.score() if server_round == SCORING_ROUND else self.train(server_round)
        self.outbox = history.predictions(np.dtype(self.training.dtype))
        if self.settings.history_size:
            rng = stream(self.training.seed, Purpose.HISTORY, self.site.partition_id, server_round)
            self.outbox = subsample(self.outbox, self.settings.history_size, rng)
        if self.settings.prediction_noise:
            self.outbox = noised(self.outbox, self.settings.prediction_noise)
        if server_round == SCORING_ROUND:
            return [], len(self.site), {}
        if self.momentum is not None:
            self.outbox = replace(self.outbox, momentum=self.momentum.cpu().numpy())
        return self.fitted()

    @torch.no_grad()
    def score(self) -> History:
        """Lines 3-4: K batches scored with the initial model, before any step."""
        positives, partners = self.samplers(Purpose.POSITIVES, Purpose.PARTNERS)
        history = History()
        for position in range(self.training.local_steps):
            first, second = positives.batch(position), partners.batch(position)
            _, a, b = self.forward(first, second)
            history.add(a, None, b, self.labels(second))
        return history

    def train(self, server_round: int) -> History:
        """Lines 8-17: K local steps on active batches and lazy draws."""
        if self.inbox is None:
            raise ValueError(f"round {server_round}: the inbox is empty, a FedXPool is needed")
        pool = Pool(self.inbox, self, server_round)
        num_clients, num_positives, num_partners = (int(total) for total in self.inbox.totals)
        positive_omega = num_clients * len(self.site.positives) / max(num_positives, 1)  # omega_1i
        partner_omega = num_clients * len(self.partners) / max(num_partners, 1)  # omega_2i
        positives, partners = self.samplers(Purpose.POSITIVES, Purpose.PARTNERS)
        fresh = self.samplers(Purpose.INDEPENDENT_POSITIVES, Purpose.INDEPENDENT_PARTNERS)  # draw nothing yet
        estimates = self.start_estimates()
        history = History()
        for iteration in self.local_iterations(server_round):
            position = iteration + self.training.local_steps  # the scoring round took the first K batches
            first, second = positives.batch(position), partners.batch(position)
            draw = self.complete(pool.draw(self.settings.positive_batch_size, self.settings.negative_batch_size))
            if self.settings.independent_history:
                self.record_independent(history, fresh, position, draw, estimates)
            scores, a, b = self.forward(first, second)
            labels = self.labels(second)

            u = None
            slopes = [torch.zeros_like(a), torch.zeros_like(b)]
            if len(a) and len(draw.partner_scores):
                u = self.observe(estimates, first, a, draw)
                slopes[0] = positive_slopes(self.objective, a, draw, u, positive_omega)
            if len(b) and len(draw.positive_scores):
                slopes[1] = partner_slopes(self.objective, b, labels, draw, partner_omega, num_partners)
            self.step(self.gradient(scores, *slopes), self.training.learning_rate_at(iteration))
            if not self.settings.independent_history:
                history.add(*self.recorded(a, u), b, labels)
        self.keep_estimates(estimates)
        return history

    def record_independent(
        self,
        history: History,
        fresh: tuple[EpochSampler, EpochSampler],
        position: int,
        draw: Draw,
        estimates: Estimates | None,
    ) -> None:
        """Algorithm 2, line 14: predictions of a sample of its own go into the history."""
        first, second = (sampler.batch(position) for sampler in fresh)
        with torch.no_grad():
            _, a, b = self.forward(first, second)
        u = None
        if estimates is not None and len(a) and len(draw.partner_scores):
            rows = self.table_rows(first)
            seen = self.objective.observe(
                draw.partner_scores[None, :] - a[:, None], draw.partner_labels, draw.partner_weights
            )
            u = torch.where(estimates.observed[rows, None], estimates.u[rows], seen)
        history.add(*self.recorded(a, u), b, self.labels(second))

    # What linear f needs none of, and FedX2 fills in.

    def start_estimates(self) -> Estimates | None:
        return None

    def keep_estimates(self, estimates: Estimates | None) -> None:
        return None

    def complete(self, draw: Draw) -> Draw:
        return draw

    def observe(self, estimates: Estimates | None, positives: Indices, scores: Tensor, draw: Draw) -> Tensor | None:
        return None

    def recorded(self, scores: Tensor, u: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return scores, None

    def step(self, gradient: Tensor, step: float) -> None:
        """w <- w - eta * (G_1 + G_2)."""
        self.model.parameters.add_(gradient, alpha=-step)


class FedX2Client(FedX1Client):
    """Algorithm 2: non-linear f, with u tracked per positive and a gradient momentum."""

    memory = InnerEstimates
    default_loss: ClassVar[str] = "kl-opauc"

    def start_estimates(self) -> Estimates:
        self.momentum = self.vector_or_none(self.inbox.momentum)
        return self.recall()

    def keep_estimates(self, estimates: Estimates | None) -> None:
        assert estimates is not None
        self.remember(estimates)

    def complete(self, draw: Draw) -> Draw:
        """Give lazy positives without a u the one observed against the partners drawn with them."""
        if not len(draw.partner_scores) or (draw.u is not None and draw.tracked is None):
            return draw
        s = draw.partner_scores[None, :] - draw.positive_scores[:, None]
        seen = self.objective.observe(s, draw.partner_labels, draw.partner_weights)
        if draw.u is None or draw.tracked is None:
            return replace(draw, u=seen)
        return replace(draw, u=torch.where(draw.tracked[:, None], draw.u, seen), tracked=None)

    def observe(self, estimates: Estimates | None, positives: Indices, scores: Tensor, draw: Draw) -> Tensor:
        """Equation (8): u of the batch, updated with what this step observes."""
        assert estimates is not None
        s = draw.partner_scores[None, :] - scores[:, None]
        seen = self.objective.observe(s, draw.partner_labels, draw.partner_weights)
        return estimates.update(self.objective, self.table_rows(positives), seen, self.settings.gamma)

    def recorded(self, scores: Tensor, u: Tensor | None) -> tuple[Tensor, Tensor]:
        if u is None:  # no partner in the pool: nothing was observed, so nothing is recorded
            return scores[:0], scores.new_empty((0, self.objective.inner_dim))
        return scores, u

    def step(self, gradient: Tensor, step: float) -> None:
        """G <- (1 - beta) * G + beta * (G_1 + G_2); w <- w - eta * G."""
        self.momentum = momentum_step(self.model, self.momentum, gradient, self.settings.beta, step)
