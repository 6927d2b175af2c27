"""The server half of local SGD with momentum: the means of the models and of the momenta."""

from __future__ import annotations

from payloads.record import FloatArray, IntArray
from payloads.settings import Settings, TrainingSettings
from payloads.sgdm import LocalMomentum, SGDMDown, SGDMSettings
from problems.objectives.classification import RATIO_LOSS, ratio_weights
from strategies.local_sgd import LocalSGD
from strategies.replies import Reply, mean, mean_model
from strategies.roster import Roster, SetupError


class LocalSGDM(LocalSGD):
    """Averages the models and the momenta of the round's clients."""

    down_type = SGDMDown
    up_type = LocalMomentum
    # the participants' mean m
    state_type = LocalMomentum
    state: LocalMomentum | None
    settings_type = SGDMSettings
    settings: SGDMSettings

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        super().__init__(training, settings)
        # fixed by the handshake: negatives and positives of all sites together, for the ratio loss
        self.class_counts: IntArray | None = None

    def meet(self, roster: Roster) -> None:
        super().meet(roster)
        if self.loss != RATIO_LOSS:
            return
        self.class_counts = roster.class_counts.sum(axis=0)
        try:
            ratio_weights(self.class_counts, self.settings.ratio_alpha, self.settings.ratio_beta)
        except ValueError as error:
            raise SetupError(
                "loss",
                got=f"{self.loss!r} with all sites together: {error}",
                allowed="both classes",
                hint="set positive-label, or bring more rows",
            ) from None

    def down(self, server_round: int) -> SGDMDown:
        return SGDMDown(class_counts=self.class_counts, momentum=None if self.state is None else self.state.momentum)

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        weights = self.weights(replies)
        self.state = LocalMomentum(momentum=mean([reply.payload.momentum for reply in replies], weights))
        return mean_model(replies, weights), {}


class LocalSGDMRatio(LocalSGDM):
    """The same on the ratio loss, whose weights come from the classes of all sites together."""

    default_loss = RATIO_LOSS
