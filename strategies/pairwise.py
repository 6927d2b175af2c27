"""The server half of the pairwise methods: what they share, and the averaging of the local one."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from payloads.fedx import FedXSettings, Momentum
from payloads.record import FloatArray, Payload
from payloads.settings import Settings, TrainingSettings
from problems.objectives.pairwise import make_objective
from strategies.base import PayloadStrategy
from strategies.replies import Reply, mean, mean_model
from strategies.roster import Roster


class PairwiseStrategy(PayloadStrategy):
    """What FedX and its local counterpart share: the objective, and what the sites hold of each side of a pair."""

    default_loss: ClassVar[str] = "kl-opauc"
    unread: ClassVar[tuple[str, ...]] = ("batch_size", "server_learning_rate")

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        super().__init__(training, settings or FedXSettings())
        assert isinstance(self.settings, FedXSettings)
        self.fedx: FedXSettings = self.settings
        self.loss = self.default_loss if self.training.loss == "auto" else self.training.loss
        self.objective = make_objective(self.loss, **self.fedx.objective_options)
        # fixed by the handshake: (N,) positives and partners of each site
        self.positives: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.partners: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        # the participants' mean G
        self.momentum: FloatArray | None = None

    def meet(self, roster: Roster) -> None:
        negatives, positives = roster.class_counts.T
        everyone = self.objective.partners == "all"
        self.positives, self.partners = positives, negatives + positives if everyone else negatives
        self.check_classes(roster, "a pairwise risk")
        fedx, kind = self.fedx, "samples" if everyone else "negatives"
        self.check_batch(roster, "fedx.positive-batch-size", fedx.positive_batch_size, "positives", positives.tolist())
        self.check_batch(roster, "fedx.negative-batch-size", fedx.negative_batch_size, kind, self.partners.tolist())

    def average(self, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        """The mean of the participants' models, and of those momenta that there are."""
        moved = [reply for reply in replies if reply.payload.momentum is not None]
        if moved:
            self.momentum = mean([reply.payload.momentum for reply in moved], self.weights(moved))
        return mean_model(replies, self.weights(replies)), {}


class LocalPair(PairwiseStrategy):
    """The mean of the models and, for non-linear f, of the momenta; no prediction leaves a site."""

    down_type = Momentum
    up_type = Momentum
    state_type = Momentum

    def down(self, server_round: int) -> Momentum:
        return Momentum(momentum=self.momentum)

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        return self.average(replies)

    def snapshot(self) -> Momentum | None:
        return None if self.momentum is None else Momentum(momentum=self.momentum)

    def restore(self, state: Payload) -> None:
        assert isinstance(state, Momentum)
        self.momentum = state.momentum
