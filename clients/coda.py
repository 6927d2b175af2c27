"""The client halves of CoDA (Guo et al., ICML 2020) and CODASCA (Yuan et al., ICML 2021); `payloads.coda` has the full
titles and the symbols.

Where the published code and the formulas differ, the formulas stand: that code divides lambda's gradient by p(1-p)
(``coda.scaled-dual``) and starts the first stage's reference from noise (``coda.reference-noise``).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import torch
from flwr.common import Scalar
from torch import Tensor

from clients.minimax import MinimaxClient
from clients.scaffold import keep_control, recall_control
from payloads.coda import CLASS_SCORES, ClassScores, CodaDown, CodascaDown, CodaSettings, stage_of
from payloads.record import FloatArray, Payload
from payloads.scaffold import ControlChange, ControlVariate
from payloads.wire import PHASE
from problems.minimax import AUCOracle
from problems.minimax.oracle import direction
from problems.sampling import Indices


class StagewiseClient(MinimaxClient):
    """What both share: the stages' step sizes and the scores that lambda restarts from."""

    phases: ClassVar[dict[str, type[Payload]]] = {CLASS_SCORES: ClassScores}

    settings_type = CodaSettings
    settings: CodaSettings

    def fit(
        self, parameters: list[FloatArray], config: dict[str, Scalar]
    ) -> tuple[list[FloatArray], int, dict[str, Scalar]]:
        server_round = self.begin(parameters, config)
        if config.get(PHASE) == CLASS_SCORES:
            self.outbox = self.class_scores()
            return [], len(self.site), {}
        inbox = self.inbox or CodascaDown()
        self.inform(inbox.population)
        self.update(server_round, inbox)
        return self.fitted()

    @abstractmethod
    def update(self, server_round: int, inbox: CodaDown) -> None:
        """K local steps."""

    def class_scores(self) -> ClassScores:
        """What the scores at the current point sum to in each class."""
        assert isinstance(self.model, AUCOracle)
        sums, counts = self.model.class_sums()
        return ClassScores(sums=sums.cpu().numpy(), counts=counts.cpu().numpy().astype("int64"))

    def steps(self, server_round: int) -> Iterator[tuple[int, float]]:
        """The round's iterations, each with eta: the learning rate with its own drops, divided by ``stage-decay`` for
        every stage before this one."""
        decay = self.settings.stage_decay ** -stage_of(server_round, self.settings).index
        for iteration in self.local_iterations(server_round):
            yield iteration, self.training.learning_rate_at(iteration) * decay

    def gradient(self, batch: Indices) -> Tensor:
        """(d,) the gradient at the current point; valid until the next call."""
        gradient = self.model.gradient(batch)
        if self.settings.scaled_dual and isinstance(self.model, AUCOracle):
            gradient[self.model.primal_dim :] /= self.model.prior * (1 - self.model.prior)
        return gradient

    def reference(self, inbox: CodaDown) -> Tensor:
        """(p,) what x is pulled towards: the point that came down where nothing else did."""
        values = self.model.parameters.clone() if inbox.reference is None else self.vector(inbox.reference)
        return values[: self.model.primal_dim]


class CodaClient(StagewiseClient):
    """CoDA: K proximal steps in x, ascent in y."""

    down = CodaDown

    def update(self, server_round: int, inbox: CodaDown) -> None:
        """x <- (x - eta g_x + eta/gamma x_ref) / (1 + eta/gamma), y <- y + eta g_y."""
        point, sampler, signs = self.model.parameters, self.sampler(), direction(self.model, 1.0, 1.0)
        x, reference = point[: self.model.primal_dim], self.reference(inbox)
        for iteration, step in self.steps(server_round):
            point.addcmul_(signs, self.gradient(sampler.batch(iteration)), value=step)
            if pull := step * self.settings.proximal:
                x.add_(reference, alpha=pull).div_(1 + pull)


class CodascaClient(StagewiseClient):
    """CODASCA: K steps whose gradients are corrected by c - c_k; the client keeps c_k, zeros at first.

    The new c_k is the mean of the round's uncorrected stochastic gradients (option II of SCAFFOLD, as published).
    """

    down = CodascaDown
    up = ControlChange
    memory = ControlVariate

    def update(self, server_round: int, inbox: CodaDown) -> None:
        """x <- x - eta (g_x - c_k + c) - eta/gamma (x - x_ref), y <- y + eta (g_y - c_k + c)."""
        assert isinstance(inbox, CodascaDown)
        point, sampler, signs = self.model.parameters, self.sampler(), direction(self.model, 1.0, 1.0)
        x, reference = point[: self.model.primal_dim], self.reference(inbox)
        own, correction = recall_control(self, inbox.control)
        total = torch.zeros_like(point)
        for iteration, step in self.steps(server_round):
            gradient = self.gradient(sampler.batch(iteration))
            total += gradient
            if pull := step * self.settings.proximal:
                x.lerp_(reference, pull)
            point.addcmul_(signs, gradient.add_(correction), value=step)
        keep_control(self, own, total / self.training.local_steps)
