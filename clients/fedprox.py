"""FedProx's client half (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous
Networks", MLSys 2020)."""

from __future__ import annotations

from flwr.common import Scalar

from clients.local_sgd import SampleLossClient
from payloads.fedprox import PROXIMAL_MU, FedProxSettings
from payloads.record import FloatArray


class FedProxClient(SampleLossClient):
    """K steps of SGD on cross-entropy + mu/2 |w - w_server|^2. mu is the message's ``proximal-mu``, which Flower's own
    FedProx sends too; without one it is the settings'."""

    settings_type = FedProxSettings
    settings: FedProxSettings

    def fit(
        self, parameters: list[FloatArray], config: dict[str, Scalar]
    ) -> tuple[list[FloatArray], int, dict[str, Scalar]]:
        server_round = self.begin(parameters, config)
        mu, point = float(config.get(PROXIMAL_MU, self.settings.proximal_mu)), self.model.parameters
        reference = point.clone()
        for step, batch in self.steps(server_round):
            gradient = self.gradient(batch)
            # w <- w - eta (g + mu (w - w_server))
            if pull := step * mu:
                point.lerp_(reference, pull)
            point.add_(gradient, alpha=-step)
        return self.fitted()
