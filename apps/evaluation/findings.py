"""The evaluators of networks whose rows have several binary labels, the findings."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from apps.evaluation.losses import measure_loss
from apps.evaluation.networks import NetworkEvaluator
from apps.run_config.algorithm import RunConfig
from payloads.record import FloatArray
from problems.data import Samples
from problems.finding_metrics import class_accuracy, mean_metrics
from problems.models import FlatModel
from problems.objectives.classification import SOFTMAX
from problems.site import as_tensor
from problems.tallies import NOWHERE, Tally

# a function: the arrays of a model -> the counted scores of the sites' held-out rows, of each finding or the only label
CountScores = Callable[[list[FloatArray]], list[Tally]]


class FindingsEvaluator(NetworkEvaluator):
    """Metrics of a network's scores of rows with findings: means over the findings, and each finding's AUC.

    With the loss "softmax" ``loss`` is the cross-entropy of a row's class, and ``accuracy`` is `class_accuracy`.

    Attributes:
        accuracy: The newest model's `class_accuracy`. None: another loss, or unknown.
    """

    accuracy: float | None = None

    @abstractmethod
    def count(self, arrays: Sequence[FloatArray]) -> list[Tally]:
        """Score rows with a model, and return the counted scores of the rows in which each finding is known.

        Args:
            arrays: The arrays of the model.
        """

    def __call__(self, arrays: Sequence[FloatArray]) -> dict[str, float]:
        names, tallies = self.config.data.findings, self.count(arrays)
        self.tallies = dict(zip(names, tallies, strict=True))
        rows = [tally.rows() for tally in tallies]
        metrics = mean_metrics(names, rows, partial(measure_loss, self.config))
        if self.config.training.loss == SOFTMAX:
            metrics["loss"] *= len(names)
            del metrics["accuracy"]
            metrics |= {} if self.accuracy is None else {"accuracy": self.accuracy}
        return metrics | self.nonzeros(arrays)


class FindingRowsEvaluator(FindingsEvaluator):
    """The metrics on rows of the server.

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
        self.sites = np.full(len(test), NOWHERE) if test.sites is None else test.sites

    def count(self, arrays: Sequence[FloatArray]) -> list[Tally]:
        self.model.load(arrays)
        scores = self.model.predict(self.features)
        if not torch.isfinite(scores).all():
            raise self.explain_divergence()
        numbers, values, sites = scores.cpu().numpy(), self.findings.values, self.sites
        if self.config.training.loss == SOFTMAX:
            self.accuracy = class_accuracy(self.findings, numbers)
        known = enumerate(self.findings.known.T)
        return [Tally.of_rows(values[own, j], numbers[own, j], sites[own]) for j, own in known]


class FindingCountsEvaluator(FindingsEvaluator):
    """The metrics on the sites' held-out rows. The server knows only in which bin each score lies.

    Args:
        config: The run config.
        model: The network.
        count_scores: The function that asks the sites.
    """

    def __init__(self, config: RunConfig, model: FlatModel, count_scores: CountScores) -> None:
        super().__init__(config, model)
        self.summary += "; evaluated by the sites"
        self.count_scores = count_scores

    def count(self, arrays: Sequence[FloatArray]) -> list[Tally]:
        return self.count_scores(list(arrays))
