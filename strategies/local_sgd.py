"""The strategies of local SGD and its variants, each defined by a module of `methods`."""

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from methods.fedprox import FEDPROX, PROXIMAL_MU, FedProxSettings
from methods.fgdro import FGDRO_CVAR, FGDRO_KL
from methods.local_sgd import LOCAL_SGD
from methods.scaffold import SCAFFOLD
from methods.sgdm import LOCAL_SGDM, LOCAL_SGDM_RATIO
from payloads.record import FloatArray
from strategies.method import MethodStrategy, strategy_of
from strategies.rounds.errors import StrategyError
from strategies.rounds.replies import Reply

LocalSGD = strategy_of(LOCAL_SGD, "LocalSGD")
Scaffold = strategy_of(SCAFFOLD, "Scaffold")


class FedProx(MethodStrategy):
    """FedProx, which sends mu in every message's config.

    With ``client-weights`` "examples" the mean equals Flower's (`flwr.serverapp.strategy.FedProx`) to the bit: the
    weights are the replies' numbers of examples, and the mean is computed in the model's number type.
    """

    method = FEDPROX
    settings: FedProxSettings

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, **more: Any
    ) -> Iterable[Message]:
        extended = ConfigRecord({**config, PROXIMAL_MU: self.settings.proximal_mu})
        return super().configure_train(server_round, arrays, extended, grid, **more)

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        if not self.training.by_examples or self.training.server_optimizer != "none":
            return super().combine(server_round, replies)
        total = sum(reply.num_examples for reply in replies)
        if not total:
            raise StrategyError(
                f"round {server_round}: every client that answered has 0 examples, so the mean of their models is "
                "undefined; set client-weights to equal"
            )
        mean = [array * (replies[0].num_examples / total) for array in replies[0].model]
        for reply in replies[1:]:
            for summed, array in zip(mean, reply.model, strict=True):
                summed += array * (reply.num_examples / total)
        return mean, {}


LocalSGDM = strategy_of(LOCAL_SGDM, "LocalSGDM")
LocalSGDMRatio = strategy_of(LOCAL_SGDM_RATIO, "LocalSGDMRatio")
FGDROKL = strategy_of(FGDRO_KL, "FGDROKL")
FGDROCVaR = strategy_of(FGDRO_CVAR, "FGDROCVaR")
