"""FedProx's server half (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous
Networks", MLSys 2020): what `flwr.serverapp.strategy.FedProx` does, on our handshake, sampling and validation."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from payloads.fedprox import PROXIMAL_MU, FedProxSettings
from payloads.record import FloatArray
from payloads.settings import Settings, TrainingSettings
from payloads.wire import NUM_EXAMPLES, content, model_arrays, model_record
from strategies.local_sgd import LocalSGD
from strategies.replies import Reply
from strategies.roster import StrategyError


class FedProx(LocalSGD):
    """Sends mu in every message's config and averages as Flower's FedProx does, to the bit: by Flower's own function,
    weighted by the numbers of examples, in the arithmetic of the model's number type."""

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        super().__init__(training, settings or FedProxSettings())
        assert isinstance(self.settings, FedProxSettings)
        self.fedprox: FedProxSettings = self.settings

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        told = ConfigRecord({**config, PROXIMAL_MU: self.fedprox.proximal_mu})
        return super().configure_train(server_round, arrays, told, grid)

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        if not any(reply.num_examples for reply in replies):
            raise StrategyError(f"round {server_round}: no client that answered has examples to weigh its model by")
        records = [
            content(arrays=model_record(reply.model), metrics={NUM_EXAMPLES: reply.num_examples}) for reply in replies
        ]
        return model_arrays(aggregate_arrayrecords(records, NUM_EXAMPLES)), {}
