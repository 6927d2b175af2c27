"""FedSGDA's server half (Xie et al., "A Federated Learning Framework for Nonconvex-PL Minimax Problems", Framework 1).

A round has two exchanges with two independent samples of clients: S'_t sends gradients, from which the estimator makes
(u_t, v_t); S_t takes K local steps that they correct, and the mean of its points is the next point.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from flwr.app import ArrayRecord

from payloads.fedsgda import GRADIENTS, EstimatorState, FedSGDADown, FedSGDASettings, LocalGradient
from payloads.record import Payload
from payloads.settings import Settings, TrainingSettings
from payloads.wire import model_arrays
from problems.randomness import Purpose
from strategies.estimators import GradientEstimator, Minibatch, Spider, Storm, Svrg
from strategies.minimax import MinimaxStrategy
from strategies.replies import exact_mean
from strategies.roster import Roster, SetupError


class FedSGDA(MinimaxStrategy):
    """Framework 1 with any estimator; the subclasses name theirs."""

    down_type = FedSGDADown
    phases: ClassVar[dict[str, type[Payload]]] = {GRADIENTS: LocalGradient}
    state_type = EstimatorState
    state: EstimatorState | None
    settings_type = FedSGDASettings
    settings: FedSGDASettings
    own_steps: ClassVar[tuple[str, ...]] = ("fedsgda.primal-step", "fedsgda.dual-step")
    unread: ClassVar[tuple[str, ...]] = (
        "learning_rate",
        "lr_decay",
        "lr_decay_every",
        "lr_decay_at",
        "server_learning_rate",
    )
    kind: ClassVar[type[GradientEstimator]]

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        super().__init__(training, settings)
        self.estimator = self.kind(self.settings)

    def meet(self, roster: Roster) -> None:
        super().meet(roster)
        large = self.settings.large_batch
        if self.estimator.periodic and isinstance(large, int) and large > len(roster):
            raise SetupError(
                "fedsgda.large-batch",
                got=large,
                allowed=f"at most as many as clients, {len(roster)}",
                hint="lower it, or take more clients",
            )

    def inquire(self, server_round: int, arrays: ArrayRecord) -> ArrayRecord:
        """The gradient collection phase: lines 3-5."""
        assert self.roster is not None
        t, training = server_round - 1, self.training
        question = self.estimator.question(t, self.state)
        count = self.roster.share(training.fraction_train, training.fewest_asked)
        if question.large:
            large = self.settings.large_batch
            count = max(training.fewest_asked, len(self.roster) if isinstance(large, str) else large)
        places = self.roster.draw(count, training.seed, server_round, Purpose.GRADIENT_CLIENTS)
        dtype = np.dtype(training.dtype)
        down = None
        if question.reference is not None or self.population is not None:
            down = FedSGDADown(
                population=self.population,
                reference=None if question.reference is None else question.reference.astype(dtype),
                weight=None if question.reference is None else np.array([question.weight], dtype=dtype),
            )
        replies = self.ask(server_round, places, arrays, down, GRADIENTS)
        collected = exact_mean([reply.payload.gradient for reply in replies])
        self.state = self.estimator.update(t, self.state, model_arrays(arrays)[0].astype(np.float64), collected)
        return arrays

    def down(self, server_round: int) -> FedSGDADown:
        assert self.state is not None
        estimate = self.state.estimate.astype(np.dtype(self.training.dtype))
        return FedSGDADown(population=self.population, estimate=estimate)


class FedSGDAMB(FedSGDA):
    """FedSGDA-MB: the mean of the sampled clients' gradients."""

    kind = Minibatch


class FedSGDASTORM(FedSGDA):
    """FedSGDA-STORM."""

    kind = Storm


class FedSGDASPIDER(FedSGDA):
    """FedSGDA-SPIDER (Appendix B)."""

    kind = Spider


class FedSGDASVRG(FedSGDA):
    """FedSGDA with the SVRG estimator (Remark 1)."""

    kind = Svrg
