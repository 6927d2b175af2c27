"""The server halves of FedSGDA; `methods.fedsgda` is the method."""

from __future__ import annotations

from typing import ClassVar

from flwr.app import ArrayRecord

from methods.fedsgda import (
    GRADIENTS,
    MINIBATCH,
    SPIDER,
    STORM,
    SVRG,
    Estimator,
    EstimatorState,
    FedSGDASettings,
    ask,
    estimate,
    make_method,
)
from payloads.wire import model_arrays
from problems.randomness import Purpose
from strategies.minimax import MinimaxStrategy
from strategies.rounds.errors import SetupError
from strategies.rounds.handshake import Roster


class FedSGDA(MinimaxStrategy):
    """Framework 1 with any estimator; the subclasses name theirs."""

    estimator: ClassVar[Estimator]
    state: EstimatorState | None
    settings: FedSGDASettings
    own_steps: ClassVar[tuple[str, ...]] = ("fedsgda.primal-step", "fedsgda.dual-step")
    unread: ClassVar[tuple[str, ...]] = (
        "learning_rate",
        "lr_decay",
        "lr_decay_every",
        "lr_decay_at",
        "server_learning_rate",
    )

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
        """The gradient collection phase, lines 2 to 5: question, answers, estimate."""
        assert self.roster is not None
        training, (x, *_) = self.training, model_arrays(arrays)
        question = self.estimator.question(server_round - 1, self.state, self.settings)
        count = self.roster.share(training.fraction_train, training.fewest_asked)
        if question.large:
            large = self.settings.large_batch
            count = max(training.fewest_asked, len(self.roster) if isinstance(large, str) else large)
        places = self.roster.draw(count, training.seed, server_round, Purpose.GRADIENT_CLIENTS)
        replies = self.ask(server_round, places, arrays, ask(question, x, self.plan(server_round)), GRADIENTS)
        self.state = estimate(question, self.state, x, [reply.payload for reply in replies])
        return arrays


class FedSGDAMB(FedSGDA):
    """FedSGDA-MB: the mean of the sampled clients' gradients."""

    method, estimator = make_method(MINIBATCH), MINIBATCH


class FedSGDASTORM(FedSGDA):
    """FedSGDA-STORM."""

    method, estimator = make_method(STORM), STORM


class FedSGDASPIDER(FedSGDA):
    """FedSGDA-SPIDER (Appendix B)."""

    method, estimator = make_method(SPIDER), SPIDER


class FedSGDASVRG(FedSGDA):
    """FedSGDA with the SVRG estimator (Remark 1)."""

    method, estimator = make_method(SVRG), SVRG
