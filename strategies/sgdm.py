"""The server halves of local SGD with momentum; `methods.sgdm` is the method."""

from __future__ import annotations

from dataclasses import replace

from methods.sgdm import LOCAL_SGDM, SGDMSettings
from problems.objectives.classification import RATIO_LOSS, ratio_weights
from strategies.method import MethodStrategy
from strategies.rounds.errors import SetupError
from strategies.rounds.handshake import Roster


class LocalSGDM(MethodStrategy):
    """Averages the models and the momenta of the round's clients."""

    method = LOCAL_SGDM
    settings: SGDMSettings

    def meet(self, roster: Roster) -> None:
        super().meet(roster)
        if self.loss != RATIO_LOSS:
            return
        try:
            ratio_weights(roster.class_counts.sum(axis=0), self.settings.ratio_alpha, self.settings.ratio_beta)
        except ValueError as error:
            raise SetupError(
                "loss",
                got=f"{self.loss!r} with all sites together: {error}",
                allowed="both classes",
                hint="set positive-label, or bring more rows",
            ) from None


class LocalSGDMRatio(LocalSGDM):
    """The same on the ratio loss, whose weights come from the classes of all sites together."""

    method = replace(LOCAL_SGDM, loss=RATIO_LOSS)
