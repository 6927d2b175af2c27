"""Local SGD's server half: the mean of the models (Stich 2019)."""

from __future__ import annotations

from strategies.base import PayloadStrategy
from strategies.roster import Roster


class LocalSGD(PayloadStrategy):
    """Averages the models of the round's clients; nothing else travels."""

    def meet(self, roster: Roster) -> None:
        self.check_samples(roster)
