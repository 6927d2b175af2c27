"""The server half of local pairs, `methods.local_pair`, and what it shares with that of FedX."""

from __future__ import annotations

from typing import ClassVar

from methods.local_pair import LOCAL_PAIR
from methods.pairwise import FedXSettings, count_halves
from payloads.settings import Settings, TrainingSettings
from problems.objectives.pairwise import make_objective
from strategies.method import MethodStrategy
from strategies.rounds.handshake import Roster


class PairwiseStrategy(MethodStrategy):
    """What FedX and its local counterpart share: the objective, and what the sites must hold of each side of a pair."""

    unread: ClassVar[tuple[str, ...]] = ("batch_size", "server_learning_rate")
    settings: FedXSettings

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        super().__init__(training, settings)
        self.objective = make_objective(self.loss, **self.settings.objective_options)

    def meet(self, roster: Roster) -> None:
        self.check_classes(roster, "a pairwise risk")
        fedx, kind = self.settings, "samples" if self.objective.partners == "all" else "negatives"
        positives, partners = (counts.tolist() for counts in count_halves(self.objective, roster.class_counts))
        self.check_batch(roster, "fedx.positive-batch-size", fedx.positive_batch_size, "positives", positives)
        self.check_batch(roster, "fedx.negative-batch-size", fedx.negative_batch_size, kind, partners)


class LocalPair(PairwiseStrategy):
    """The mean of the models and, for non-linear f, of the momenta; no prediction leaves a site."""

    method = LOCAL_PAIR
