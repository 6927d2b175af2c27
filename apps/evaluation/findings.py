"""The evaluator of networks whose rows have several binary labels."""

from collections.abc import Sequence

import torch

from apps.evaluation.networks import NetworkEvaluator
from apps.run_config.algorithm import RunConfig
from payloads.record import FloatArray
from problems.data import Samples
from problems.finding_metrics import finding_metrics
from problems.models import FlatModel
from problems.site import as_tensor


class FindingsEvaluator(NetworkEvaluator):
    """Metrics of a network's scores of rows with findings: means over the findings, and each finding's AUC.

    Args:
        config: The run config.
        model: The network.
        test: The rows.
    """

    def __init__(self, config: RunConfig, model: FlatModel, test: Samples) -> None:
        super().__init__(config, model)
        assert test.findings is not None
        self.features = as_tensor(test.features, model.dtype, model.device)
        self.findings = test.findings

    def __call__(self, arrays: Sequence[FloatArray]) -> dict[str, float]:
        self.model.load(arrays)
        scores = self.model.predict(self.features)
        if not torch.isfinite(scores).all():
            raise self.explain_divergence()
        metrics = finding_metrics(self.findings, scores.cpu().numpy(), self.config.training.loss)
        return metrics | self.nonzeros(arrays)
