"""What the server halves of the minimax methods share."""

from __future__ import annotations

from typing import ClassVar

from problems.minimax import AUC_MINIMAX, SADDLES
from strategies.method import MethodStrategy
from strategies.rounds.handshake import Roster


class MinimaxStrategy(MethodStrategy):
    """Base of the minimax strategies: the model that travels is the flat point z = (x, y), averaged plainly: that sites
    count by their samples is in their f_i. Where only some sites take part, their mean is an unbiased estimate of f."""

    weighted_gradients = True
    unread: ClassVar[tuple[str, ...]] = ("server_learning_rate",)

    default_loss = AUC_MINIMAX

    def meet(self, roster: Roster) -> None:
        super().meet(roster)
        if self.loss in SADDLES:
            self.check_classes(roster, "AUC")
