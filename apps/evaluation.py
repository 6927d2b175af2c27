"""The server's evaluation of a global model on its own test set."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from apps.config import RunConfig
from payloads.record import FloatArray
from problems.data import Samples
from problems.metrics import accuracy, binary_metrics
from problems.models import FlatModel
from problems.objectives.classification import CROSS_ENTROPY, cross_entropy
from problems.objectives.pairwise import make_objective


class Evaluator:
    """Metrics of flat models on (n, *shape) test samples.

    ``loss`` is the run's own objective on the test set: the pairwise risk F over all test pairs, or cross-entropy.
    ``accuracy`` is at logit 0, which a pairwise loss does not calibrate: it moves when all scores shift.
    """

    def __init__(self, config: RunConfig, model: FlatModel, test: Samples) -> None:
        self.config = config
        self.model = model
        self.features = torch.tensor(test.features, dtype=model.dtype, device=model.device)
        self.labels = test.labels
        self.positive = torch.tensor(test.labels == 1, device=model.device)

    def __call__(self, arrays: Sequence[FloatArray]) -> dict[str, float]:
        """Metrics by name; see `problems.metrics.binary_metrics`."""
        self.model.load(arrays)
        logits = self.model.predict(self.features)
        scores = logits.cpu().numpy()
        if not torch.isfinite(logits).all():
            raise ValueError("the global model's test scores are not finite: the run has diverged; lower learning-rate")
        return {
            **binary_metrics(self.labels, scores),
            "accuracy": accuracy(self.labels, scores, 0.0),
            "loss": self.loss(logits),
        }

    def loss(self, logits: torch.Tensor) -> float:
        """The run's objective on the test set."""
        name = self.config.training.loss
        if name == CROSS_ENTROPY:
            return float(cross_entropy(logits.double(), self.positive.double()))
        objective = make_objective(name, **self.config.family.objective_options)  # type: ignore[attr-defined]
        scores = torch.sigmoid(logits) if self.config.training.score == "sigmoid" else logits
        if objective.partners == "all":
            return float(objective.risk(scores[self.positive], scores, self.positive.double()))
        return float(objective.risk(scores[self.positive], scores[~self.positive]))
