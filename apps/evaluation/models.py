"""Evaluators of networks and of minimax problems, for runs whose clients have rows (not columns).

A network is evaluated on rows of the server, or on the sites' held-out rows, whose scores the sites count by bins.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from apps.evaluation.bounded import slope_of
from apps.evaluation.findings import CountScores, FindingCountsEvaluator, FindingRowsEvaluator
from apps.evaluation.losses import measure_loss
from apps.evaluation.networks import AddErrors, NetworkEvaluator, SumEvaluator, format_of
from apps.evaluation.own_metrics import OwnMetric, find_own_metrics, measure_own
from apps.evaluation.site_times import CountTimes, SiteTimeEvaluator
from apps.evaluation.times import TimeEvaluator
from apps.run_config.algorithm import Evaluator, RunConfig
from apps.run_config.settings import ConfigError
from apps.sites import resources
from apps.sites.cells import check_outcomes
from apps.sites.server_rows import server_samples
from payloads.record import FloatArray
from payloads.settings import Settings
from problems.data import DataSpec, FederatedData, Samples
from problems.data.subgroups import check_subgroups
from problems.errors import NOTHING
from problems.image_tensor import read_all
from problems.metrics import accuracy, binary_metrics
from problems.minimax import SYNTHETIC_PL
from problems.models import FlatModel
from problems.number_metrics import number_metrics
from problems.site import as_tensor
from problems.tallies import Tally
from strategies.rounds.schema import Schema


class ScoreEvaluator(NetworkEvaluator):
    """Metrics of a network from its scores of labelled rows; see `problems.metrics.binary_metrics`.

    ``loss`` is `apps.evaluation.losses.measure_loss`.

    ``accuracy`` has its threshold at logit 0. A pairwise loss depends only on differences of scores, so a shift of all
    scores changes the accuracy but not the loss.

    Attributes:
        score_range: The smallest and the largest score of the newest model, and the number of scores.
        mean_slope: The mean derivative of the loss's score, such as the sigmoid, by the newest model's outputs.
    """

    score_range: tuple[float, float, int] | None = None
    mean_slope = 1.0
    own_metrics: Mapping[str, OwnMetric] = MappingProxyType({})

    @abstractmethod
    def scores(self, arrays: Sequence[FloatArray]) -> tuple[NDArray[np.int8], torch.Tensor]:
        """Score the test rows with a model.

        Returns:
            The labels (n,), 1 for positive, and the logits (n,).
        """

    def __call__(self, arrays: Sequence[FloatArray]) -> dict[str, float]:
        labels, logits = self.scores(arrays)
        scores = logits.cpu().numpy()
        if not torch.isfinite(logits).all():
            raise self.explain_divergence()
        self.score_range = (float(scores.min()), float(scores.max()), len(scores))
        self.mean_slope = slope_of(self.config.training, logits)
        metrics = {
            **binary_metrics(labels, scores),
            "accuracy": accuracy(labels, scores, 0.0),
            "loss": measure_loss(self.config, logits, torch.tensor(labels == 1, device=logits.device)),
        }
        return metrics | measure_own(self.own_metrics, labels, scores) | self.nonzeros(arrays)


class ModelEvaluator(ScoreEvaluator):
    """Metrics of a network on test samples (n, *shape), whose labels are classes or numbers."""

    def __init__(self, config: RunConfig, model: FlatModel, test: Samples) -> None:
        super().__init__(config, model)
        self.features = as_tensor(test.features, model.dtype, model.device)
        self.labels = test.labels
        self.sites = test.sites
        self.subgroups = test.subgroups
        self.numeric = test.numeric
        self.offsets = None if test.offsets is None else torch.tensor(test.offsets, device=model.device)
        self.own_metrics = find_own_metrics(config.evaluation.metrics)

    def __call__(self, arrays: Sequence[FloatArray]) -> dict[str, float]:
        if not self.numeric:
            return super().__call__(arrays)
        scores = self.predict(arrays).cpu().numpy()
        try:
            metrics = number_metrics(self.config.training.loss, self.labels.astype(np.float64), scores)
        except ValueError as error:
            raise self.explain_divergence() from error
        return metrics | measure_own(self.own_metrics, self.labels, scores) | self.nonzeros(arrays)

    def predict(self, arrays: Sequence[FloatArray]) -> torch.Tensor:
        """Return the scores of the rows (n,), with their offsets.

        Args:
            arrays: The arrays of a model.
        """
        self.model.load(arrays)
        scores = self.model.predict(self.features)
        return scores if self.offsets is None else scores + self.offsets

    def scores(self, arrays: Sequence[FloatArray]) -> tuple[NDArray[np.int8], torch.Tensor]:
        logits = self.predict(arrays)
        if self.config.evaluation.counts:
            self.tallies = {"": Tally.of_rows(self.labels, logits.cpu().numpy(), self.sites)}
        return self.labels.astype(np.int8, copy=False), logits


class HeldOutEvaluator(ScoreEvaluator):
    """Metrics of a network on the sites' held-out rows. The server knows only in which bin each score lies."""

    def __init__(self, config: RunConfig, model: FlatModel, count_scores: CountScores) -> None:
        super().__init__(config, model)
        self.summary += "; evaluated by the sites"
        self.count_scores = count_scores

    def scores(self, arrays: Sequence[FloatArray]) -> tuple[NDArray[np.int8], torch.Tensor]:
        (tally,) = self.count_scores(list(arrays))
        self.tallies = {"": tally}
        labels, scores = tally.rows()
        return labels, torch.from_numpy(scores)


class ProblemEvaluator(Evaluator):
    """Metrics of a synthetic or user-defined minimax problem: ``loss``, which is f(x, y), and the problem's metrics.

    The synthetic problem is evaluated on the union of the sites' samples. Its sites have equally many samples, so the
    mean over the union is f. A user's problem is evaluated on the test set.
    """

    def __init__(self, config: RunConfig, samples: Samples) -> None:
        dtype, device = resources.dtype_of(config.training), resources.device_of(config.training)
        features = read_all(as_tensor(samples.features, dtype, device))
        labels = torch.tensor(samples.labels, dtype=dtype, device=device)
        self.oracle = resources.own_problem(config, features, labels)
        problem = self.oracle.problem
        self.summary = f"problem {config.training.loss}: {problem.primal_dim} + {problem.dual_dim} variables"

    def start(self) -> list[FloatArray]:
        return self.oracle.arrays()

    def start_from(self, tensors: Mapping[str, torch.Tensor]) -> list[FloatArray]:
        self.oracle.load([torch.cat([tensors["x"], tensors["y"]]).numpy()])
        return self.oracle.arrays()

    def __call__(self, arrays: Sequence[FloatArray]) -> dict[str, float]:
        self.oracle.load(arrays)
        metrics = {**self.oracle.metrics(), "loss": self.oracle.value()}
        if not all(map(math.isfinite, metrics.values())):
            raise ValueError(f"the metrics are not finite ({metrics}): the run has diverged; lower the step sizes")
        return metrics

    def name_arrays(self, arrays: Sequence[FloatArray]) -> dict[str, Any]:
        return {"x": arrays[0][: self.oracle.primal_dim], "y": arrays[0][self.oracle.primal_dim :]}


def evaluate_rows(config: RunConfig, model: FlatModel, data: FederatedData, rows: Samples) -> NetworkEvaluator:
    """Return the evaluator of a network on rows, whatever their labels.

    Args:
        config: The run config.
        model: The network.
        data: The run's data.
        rows: The rows.
    """
    if rows.findings is not None:
        return FindingRowsEvaluator(config, model, rows)
    if rows.periods is not None:
        assert data.columns is not None
        return TimeEvaluator(config, model, rows, data.columns)
    return ModelEvaluator(config, model, rows)


def _check_scores(config: RunConfig, evaluator: Evaluator) -> None:
    """Refuse metrics of the user if the server does not have the scores of rows with one label."""
    if (metrics := config.evaluation.metrics) and not isinstance(evaluator, ModelEvaluator):
        allowed = "'', since the server does not have labels and scores of rows with one label each"
        hint = "remove metrics, or set data-dir to a test file for the server"
        raise ConfigError("metrics", got=repr(metrics), allowed=allowed, hint=hint)


class RowEvaluation:
    """Evaluation of runs whose clients have rows: by a network's scores of test rows, or a minimax problem's value."""

    def __call__(self, config: RunConfig, num_clients: int, /, *, pooled: bool = True, test: bool = False) -> Evaluator:
        """Return the evaluator of a run on the run config's data.

        Args:
            config: The run config.
            num_clients: The number of clients.
            pooled: Without effect: the server always loads the data.
            test: Whether to evaluate on the test rows even if the run has validation rows.

        Raises:
            DataError: The data cannot be loaded.
        """
        data = resources.federated_data(config.data, num_clients)
        for rows in (data.test, data.evaluated):
            check_outcomes(config, rows)
        evaluator = self.of_data(config, data, test=test)
        evaluator.columns, evaluator.sample_format = data.columns, data.sample_format
        evaluator.notes, evaluator.groups = tuple(filter(None, (data.grouping,))), data.subgroups
        _check_scores(config, evaluator)
        return evaluator

    def check(self, strategy: str, spec: DataSpec, settings: Settings, /) -> None:
        """Accept every run config."""

    def of_data(self, config: RunConfig, data: FederatedData, *, test: bool = False) -> Evaluator:
        """Return the evaluator of a run whose data the server has.

        Args:
            config: The run config.
            data: The test rows, and the clients' rows for the synthetic minimax problem.
            test: As for `__call__`.
        """
        rows = data.test if test else data.evaluated
        if resources.is_problem(config):
            return ProblemEvaluator(config, data.train if config.training.loss == SYNTHETIC_PL else rows)
        model = resources.new_model(config, data.input_shape)
        if rows.periods is not None or rows.findings is not None:
            return evaluate_rows(config, model, data, rows)
        return self.of_model(config, model, data, rows)

    def of_sites(
        self,
        config: RunConfig,
        schema: Schema,
        count_scores: CountScores,
        sum_errors: AddErrors,
        count_times: CountTimes,
    ) -> Evaluator:
        """Return the evaluator of a run whose sites read their own files.

        It uses the server's test file, if ``data-dir`` names one, and otherwise the sites' held-out rows.

        Args:
            config: The run config.
            schema: The schema that the sites' files share.
            count_scores: Function that lets the sites count the scores of their held-out rows.
            sum_errors: Function that lets the sites add up the errors on these rows, if labels are numbers.
            count_times: Function that lets the sites count these rows by time and score, if they have times.

        Raises:
            ConfigError: A minimax problem has no test file.
            DataError: The test file cannot be used.
        """
        test = server_samples(config, schema) if config.data.data_dir else None
        if resources.is_problem(config):
            if test is None:
                allowed = f"a test set, since the server evaluates loss {config.training.loss!r}"
                raise ConfigError("data-dir", got=NOTHING, allowed=allowed, hint="set data-dir to a test file")
            evaluator: Evaluator = ProblemEvaluator(config, test)
        else:
            model = resources.new_model(config, schema.shape)
            scored: NetworkEvaluator
            if config.data.has_times:
                assert schema.preprocessing is not None
                if test is not None:
                    scored = TimeEvaluator(config, model, test, schema.preprocessing)
                else:
                    scored = SiteTimeEvaluator(config, model, schema.preprocessing, count_times)
            elif test is not None:
                scored = (ModelEvaluator if test.findings is None else FindingRowsEvaluator)(config, model, test)
            elif config.data.findings:
                scored = FindingCountsEvaluator(config, model, count_scores)
            elif config.data.has_numbers:
                scored = SumEvaluator(config, model, sum_errors)
            else:
                scored = HeldOutEvaluator(config, model, count_scores)
            evaluator = self.of_scores(config, scored)
        evaluator.columns, evaluator.sample_format = schema.preprocessing, format_of(config, schema)
        evaluator.groups = check_subgroups(config.data)
        _check_scores(config, evaluator)
        return evaluator

    # Subclasses override these two methods to add metrics.

    def of_model(self, config: RunConfig, model: FlatModel, data: FederatedData, rows: Samples) -> Evaluator:
        """Return a network's evaluator if the server has the clients' rows.

        Args:
            config: The run config.
            model: The network with the run's initial weights. The evaluator loads other models into it.
            data: The run's data.
            rows: The rows to evaluate on.
        """
        return ModelEvaluator(config, model, rows)

    def of_scores(self, config: RunConfig, scored: NetworkEvaluator) -> Evaluator:
        """Return a network's evaluator if the clients' rows stay at the sites.

        Args:
            config: The run config.
            scored: The evaluator of test rows. A subclass may change or wrap it.
        """
        return scored
