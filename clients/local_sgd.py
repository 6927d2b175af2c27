"""Local SGD on cross-entropy (Stich 2019, "Local SGD Converges Fast and Communicates Little"), FedX's and other
papers' plain baseline: K steps on mini-batches of all local samples, then the mean of the models."""

from __future__ import annotations

import torch
from flwr.common import Scalar

from clients.base import ScoringClient
from payloads.record import FloatArray
from problems.models import FlatModel
from problems.objectives.classification import cross_entropy_slope


def sgd_step(model: FlatModel, features: torch.Tensor, labels: torch.Tensor, learning_rate: float) -> None:
    """w <- w - eta * grad CE(w; batch), in place."""
    logits = model.scores(features)  # (batch,)
    gradient = model.vjp(logits, cross_entropy_slope(logits.detach(), labels))
    model.parameters.add_(gradient, alpha=-learning_rate)


class LocalSGDClient(ScoringClient):
    """K steps of SGD on cross-entropy; nothing but the model travels."""

    def fit(
        self, parameters: list[FloatArray], config: dict[str, Scalar]
    ) -> tuple[list[FloatArray], int, dict[str, Scalar]]:
        server_round = self.begin(parameters, config)
        site, training, sampler = self.site, self.training, self.sampler()
        for iteration in self.local_iterations(server_round):
            batch = sampler.batch(iteration)
            sgd_step(self.model, site.rows(batch), site.targets(batch), training.learning_rate_at(iteration))
        return self.model.arrays(), len(site), {}
