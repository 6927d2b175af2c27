"""Local SGD with momentum, on the cross-entropy and on the ratio loss.

Ratio loss: Wang, Xu, Wang, Zhu, "Addressing Class Imbalance in Federated Learning" (AAAI 2021), for two classes.
"""

from __future__ import annotations

from flwr.common import Scalar
from torch import Tensor

from clients.base import Site
from clients.local_sgd import SampleLossClient
from clients.pairwise import momentum_step
from payloads.record import FloatArray, IntArray
from payloads.settings import Settings, TrainingSettings
from payloads.sgdm import LocalMomentum, SGDMDown, SGDMSettings
from problems.models import FlatModel
from problems.objectives.classification import RATIO_LOSS, ratio_slope, ratio_weights


class LocalSGDMClient(SampleLossClient):
    """K steps m <- (1 - beta) m + beta g, w <- w - eta m, from the server's m; the first m of a run is its first g."""

    down = SGDMDown
    up = LocalMomentum

    settings_type = SGDMSettings
    settings: SGDMSettings

    def __init__(
        self, site: Site, model: FlatModel, training: TrainingSettings, settings: Settings | None = None
    ) -> None:
        super().__init__(site, model, training, settings)
        # of a negative and of a positive, for the ratio loss
        self.weights: tuple[float, float] | None = None

    def fit(
        self, parameters: list[FloatArray], config: dict[str, Scalar]
    ) -> tuple[list[FloatArray], int, dict[str, Scalar]]:
        server_round = self.begin(parameters, config)
        inbox = self.inbox or SGDMDown()
        self.inform(inbox.class_counts)
        momentum = self.vector_or_none(inbox.momentum)
        for step, batch in self.steps(server_round):
            momentum = momentum_step(self.model, momentum, self.gradient(batch), self.settings.momentum, step)
        assert momentum is not None
        self.outbox = LocalMomentum(momentum=momentum.cpu().numpy())
        return self.fitted()

    def inform(self, class_counts: IntArray | None) -> None:
        """Take the ratio loss's weights from the classes of all sites together; without a server, from its own."""
        if self.loss != RATIO_LOSS:
            return
        counts = self.site.class_counts if class_counts is None else class_counts
        self.weights = ratio_weights(counts, self.settings.ratio_alpha, self.settings.ratio_beta)

    def slope(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.weights is None:
            return super().slope(logits, labels)
        return ratio_slope(logits, labels, self.weights)


class LocalSGDMRatioClient(LocalSGDMClient):
    """The same on the ratio loss."""

    default_loss = RATIO_LOSS
