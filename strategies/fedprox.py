"""FedProx's server half (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous
Networks", MLSys 2020): what `flwr.serverapp.strategy.FedProx` does, on our handshake, sampling and validation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from methods.fedprox import FEDPROX, PROXIMAL_MU, FedProxSettings
from payloads.record import FloatArray
from strategies.method import MethodStrategy
from strategies.rounds.errors import StrategyError
from strategies.rounds.replies import Reply


class FedProx(MethodStrategy):
    """Sends mu in every message's config. Weighted by examples it averages as Flower's FedProx does, to the bit: by the
    numbers that the replies name, in the arithmetic of the model's number type."""

    method = FEDPROX
    settings: FedProxSettings

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, **more: Any
    ) -> Iterable[Message]:
        told = ConfigRecord({**config, PROXIMAL_MU: self.settings.proximal_mu})
        return super().configure_train(server_round, arrays, told, grid, **more)

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        if not self.by_examples:
            return super().combine(server_round, replies)
        total = sum(reply.num_examples for reply in replies)
        if not total:
            raise StrategyError(f"round {server_round}: no client that answered has examples to weigh its model by")
        first, *others = replies
        mean = [array * (first.num_examples / total) for array in first.model]
        for reply in others:
            for summed, array in zip(mean, reply.model, strict=True):
                summed += array * (reply.num_examples / total)
        return mean, {}
