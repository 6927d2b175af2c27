"""What the client halves of the minimax methods share: an oracle as their model."""

from __future__ import annotations

from typing import ClassVar

from flwr.common import Scalar

from clients.base import PayloadClient
from payloads.record import FloatArray
from payloads.settings import EXAMPLES
from problems.minimax import AUC_MINIMAX, Oracle


class MinimaxClient(PayloadClient[Oracle]):
    """Base of the minimax clients: ``model`` is the oracle of the site's f_i, whose point is z = (x, y)."""

    default_loss: ClassVar[str] = AUC_MINIMAX

    def inform(self, population: FloatArray | None) -> None:
        """Hand on what the server said about all sites, p and n / N, the latter as omega_i = n_i / (n / N)."""
        if population is not None:
            prior, mean_size = population.tolist()
            self.model.inform(prior, len(self.site) / mean_size if self.training.client_weights == EXAMPLES else 1.0)

    def evaluate(self, parameters: list[FloatArray], config: dict[str, Scalar]) -> tuple[float, int, dict[str, Scalar]]:
        """f_i at a point, over all of the site's samples, with the site's own prior and unweighted."""
        self.model.load(parameters)
        self.model.inform(self.site.class_counts[1] / len(self.site))
        return self.model.value(), len(self.site), {}
