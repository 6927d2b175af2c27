"""What the server halves of the minimax methods share: the prior that their problem may need."""

from __future__ import annotations

from payloads.record import IntArray
from payloads.settings import Settings, TrainingSettings
from problems.minimax import AUC_MINIMAX
from strategies.base import PayloadStrategy
from strategies.roster import Roster


class MinimaxStrategy(PayloadStrategy):
    """Base of the minimax strategies: the model that travels is the flat point z = (x, y), averaged plainly."""

    default_loss = AUC_MINIMAX

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        super().__init__(training, settings)
        self.loss = self.default_loss if self.training.loss == "auto" else self.training.loss
        # fixed by the handshake: negatives and positives of all sites together, where the problem needs a prior
        self.class_counts: IntArray | None = None

    def meet(self, roster: Roster) -> None:
        self.check_samples(roster)
        if self.loss == AUC_MINIMAX:
            self.check_classes(roster, "AUC")
            self.class_counts = roster.class_counts.sum(axis=0)
