"""The server half of the pairwise methods: what they share, and the averaging of the local one."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from payloads.fedx import FedXSettings, Momentum
from payloads.record import FloatArray
from payloads.settings import Settings, TrainingSettings
from problems.objectives.pairwise import make_objective
from strategies.base import PayloadStrategy
from strategies.replies import Reply, mean, mean_model
from strategies.roster import Roster


class PairwiseStrategy(PayloadStrategy):
    """What FedX and its local counterpart share: the objective, and what the sites hold of each side of a pair."""

    default_loss: ClassVar[str] = "kl-opauc"
    unread: ClassVar[tuple[str, ...]] = ("batch_size", "server_learning_rate")
    settings_type = FedXSettings
    settings: FedXSettings

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        super().__init__(training, settings)
        self.objective = make_objective(self.loss, **self.settings.objective_options)
        # fixed by the handshake: (N,) positives and partners of each site
        self.positives: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.partners: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def meet(self, roster: Roster) -> None:
        negatives, positives = roster.class_counts.T
        everyone = self.objective.partners == "all"
        self.positives, self.partners = positives, negatives + positives if everyone else negatives
        self.check_classes(roster, "a pairwise risk")
        fedx, kind = self.settings, "samples" if everyone else "negatives"
        self.check_batch(roster, "fedx.positive-batch-size", fedx.positive_batch_size, "positives", positives.tolist())
        self.check_batch(roster, "fedx.negative-batch-size", fedx.negative_batch_size, kind, self.partners.tolist())

    def mean_momentum(self, replies: list[Reply], before: FloatArray | None) -> FloatArray | None:
        """(d,) G, the mean of those of the participants' momenta that there are; without any, what it was before."""
        moved = [reply for reply in replies if reply.payload.momentum is not None]
        return mean([reply.payload.momentum for reply in moved], self.weights(moved)) if moved else before


class LocalPair(PairwiseStrategy):
    """The mean of the models and, for non-linear f, of the momenta; no prediction leaves a site."""

    down_type = Momentum
    up_type = Momentum
    state_type = Momentum

    state: Momentum | None

    def down(self, server_round: int) -> Momentum:
        return self.state or Momentum()

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        self.state = Momentum(momentum=self.mean_momentum(replies, self.down(server_round).momentum))
        return mean_model(replies, self.weights(replies)), {}
