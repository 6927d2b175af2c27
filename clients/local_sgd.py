"""Local SGD on cross-entropy (Stich 2019, "Local SGD Converges Fast and Communicates Little"), FedX's and other
papers' plain baseline, and what all methods on losses of single samples share."""

from __future__ import annotations

from collections.abc import Iterator

from flwr.common import Scalar
from torch import Tensor

from clients.base import ScoringClient
from payloads.record import FloatArray
from problems.objectives.classification import SAMPLE_LOSSES
from problems.sampling import Indices


class SampleLossClient(ScoringClient):
    """Base of the clients whose loss is a mean over samples: mini-batches of all local samples, and its gradient."""

    # (d,) factors of a ridge term, where there is one
    ridge: Tensor | None = None

    def steps(self, server_round: int) -> Iterator[tuple[float, Indices | None]]:
        """The step size and the batch of each of the round's iterations; a batch of None is all samples."""
        sampler = self.sampler() if 0 < self.training.batch_size < len(self.site) else None
        for iteration in self.local_iterations(server_round):
            yield self.training.learning_rate_at(iteration), None if sampler is None else sampler.batch(iteration)

    def gradient(self, batch: Indices | None) -> Tensor:
        """(d,) the gradient at the current point; valid until the next call."""
        features, labels = self.site.samples(batch)
        return self.model.pullback(features, lambda scores: self.slope(scores, labels), self.ridge)

    def slope(self, logits: Tensor, labels: Tensor) -> Tensor:
        """(n,) the derivative of each sample's loss in its logit."""
        return SAMPLE_LOSSES[self.loss].slope(logits, labels)


class LocalSGDClient(SampleLossClient):
    """K steps of SGD; nothing but the model travels."""

    def fit(
        self, parameters: list[FloatArray], config: dict[str, Scalar]
    ) -> tuple[list[FloatArray], int, dict[str, Scalar]]:
        server_round = self.begin(parameters, config)
        for step, batch in self.steps(server_round):
            self.model.parameters.add_(self.gradient(batch), alpha=-step)
        return self.fitted()
