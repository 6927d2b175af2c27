"""FedProx's client half (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous
Networks", MLSys 2020)."""

from __future__ import annotations

from flwr.common import Scalar

from clients.base import Site
from clients.local_sgd import SampleLossClient
from payloads.fedprox import PROXIMAL_MU, FedProxSettings
from payloads.record import FloatArray
from payloads.settings import Settings, TrainingSettings
from problems.models import FlatModel


class FedProxClient(SampleLossClient):
    """K steps of SGD on cross-entropy + mu/2 |w - w_server|^2. mu is the message's ``proximal-mu``, which Flower's own
    FedProx sends too; without one it is the settings'."""

    def __init__(
        self, site: Site, model: FlatModel, training: TrainingSettings, settings: Settings | None = None
    ) -> None:
        super().__init__(site, model, training, settings)
        self.fedprox = settings if isinstance(settings, FedProxSettings) else FedProxSettings()

    def fit(
        self, parameters: list[FloatArray], config: dict[str, Scalar]
    ) -> tuple[list[FloatArray], int, dict[str, Scalar]]:
        server_round = self.begin(parameters, config)
        mu, point = float(config.get(PROXIMAL_MU, self.fedprox.proximal_mu)), self.model.parameters
        reference = point.clone()
        for step, batch in self.steps(server_round):
            gradient = self.gradient(batch)
            # w <- w - eta (g + mu (w - w_server))
            if pull := step * mu:
                point.lerp_(reference, pull)
            point.add_(gradient, alpha=-step)
        return self.fitted()
