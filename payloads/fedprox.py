"""FedProx's settings, and the name under which Flower's FedProx sends mu (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith,
"Federated Optimization in Heterogeneous Networks", MLSys 2020). Nothing travels beside the model but that number."""

from __future__ import annotations

from pydantic import Field

from payloads.settings import Settings

# in every message's config
PROXIMAL_MU = "proximal-mu"


class FedProxSettings(Settings):
    """Hyper-parameters of FedProx (table ``fedprox``)."""

    proximal_mu: float = Field(
        0.01, ge=0, description="weight mu of the pull towards the server's model, a number >= 0"
    )
