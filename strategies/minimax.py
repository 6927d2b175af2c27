"""What the server halves of the minimax methods share: what their clients must know of all sites together."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from payloads.record import FloatArray
from payloads.settings import Settings, TrainingSettings
from problems.minimax import AUC_MINIMAX
from strategies.base import PayloadStrategy
from strategies.roster import Roster


class MinimaxStrategy(PayloadStrategy):
    """Base of the minimax strategies: the model that travels is the flat point z = (x, y), averaged plainly: that sites
    count by their samples is in their f_i. Where only some sites take part, their mean is an unbiased estimate of f."""

    weighted_gradients = True
    unread: ClassVar[tuple[str, ...]] = ("server_learning_rate",)

    default_loss = AUC_MINIMAX

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        super().__init__(training, settings)
        # fixed by the handshake: (2,) p and n / N in float64, where a site's f_i needs them
        self.population: FloatArray | None = None

    def meet(self, roster: Roster) -> None:
        self.check_samples(roster)
        if self.loss == AUC_MINIMAX:
            self.check_classes(roster, "AUC")
        if self.loss == AUC_MINIMAX or (self.by_examples and np.ptp(roster.class_counts.sum(axis=1))):
            self.population = self.population_of(roster)

    def population_of(self, roster: Roster) -> FloatArray:
        """(2,) the share p of positives, among all samples or as the mean of the sites' shares, and n / N.

        With ``client-weights = "equal"`` the mean over sites is over a population with that mean share.
        """
        sizes, positives = roster.class_counts.sum(axis=1), roster.class_counts[:, 1]
        prior = positives.sum() / sizes.sum() if self.by_examples else (positives / sizes).mean()
        return np.array([prior, sizes.sum() / len(sizes)])
