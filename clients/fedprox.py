"""The client half of FedProx; `methods.fedprox` is the method."""

from __future__ import annotations

from flwr.common import Scalar

from clients.base import ScoringClient
from methods.fedprox import FEDPROX, PROXIMAL_MU


class FedProxClient(ScoringClient):
    """K steps of SGD on the loss plus mu/2 |w - w_server|^2. Flower's own FedProx sends mu as well."""

    method = FEDPROX

    def received(self, config: dict[str, Scalar]) -> float | None:
        mu = config.get(PROXIMAL_MU)
        return None if mu is None else float(mu)
