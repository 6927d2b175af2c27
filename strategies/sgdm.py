"""The server half of local SGD with momentum: the means of the models and of the momenta."""

from __future__ import annotations

from typing import ClassVar

from payloads.record import FloatArray, IntArray, Payload
from payloads.settings import Settings, TrainingSettings
from payloads.sgdm import LocalMomentum, SGDMDown, SGDMSettings
from problems.objectives.classification import CROSS_ENTROPY, RATIO_LOSS, ratio_weights
from strategies.local_sgd import LocalSGD
from strategies.replies import Reply, mean, mean_model
from strategies.roster import Roster, SetupError


class LocalSGDM(LocalSGD):
    """Averages the models and the momenta of the round's clients."""

    down_type = SGDMDown
    up_type = LocalMomentum
    state_type = LocalMomentum
    default_loss: ClassVar[str] = CROSS_ENTROPY

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        super().__init__(training, settings or SGDMSettings())
        assert isinstance(self.settings, SGDMSettings)
        self.sgdm: SGDMSettings = self.settings
        self.loss = self.default_loss if self.training.loss == "auto" else self.training.loss
        # fixed by the handshake: negatives and positives of all sites together, for the ratio loss
        self.class_counts: IntArray | None = None
        # (d,) the participants' mean m, from round 1 on
        self.momentum: FloatArray | None = None

    def meet(self, roster: Roster) -> None:
        super().meet(roster)
        if self.loss != RATIO_LOSS:
            return
        self.class_counts = roster.class_counts.sum(axis=0)
        try:
            ratio_weights(self.class_counts, self.sgdm.ratio_alpha, self.sgdm.ratio_beta)
        except ValueError as error:
            raise SetupError(
                "loss",
                got=f"{self.loss!r} with all sites together: {error}",
                allowed="both classes",
                hint="set positive-label, or bring more rows",
            ) from None

    def down(self, server_round: int) -> SGDMDown:
        return SGDMDown(class_counts=self.class_counts, momentum=self.momentum)

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        weights = self.weights(replies)
        self.momentum = mean([reply.payload.momentum for reply in replies], weights)
        return mean_model(replies, weights), {}

    def snapshot(self) -> LocalMomentum | None:
        return None if self.momentum is None else LocalMomentum(momentum=self.momentum)

    def restore(self, state: Payload) -> None:
        assert isinstance(state, LocalMomentum)
        self.momentum = state.momentum


class LocalSGDMRatio(LocalSGDM):
    """The same on the ratio loss, whose weights come from the classes of all sites together."""

    default_loss = RATIO_LOSS
