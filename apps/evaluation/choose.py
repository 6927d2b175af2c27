"""Choice of the `Evaluator` for runs whose clients hold rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from apps.evaluation.composite import CompositeEvaluator, penalty_terms
from apps.evaluation.models import HeldOutEvaluator, ModelEvaluator, ProblemEvaluator, ScoreEvaluator
from apps.run_config.algorithm import Evaluator, RunConfig
from apps.run_config.settings import ConfigError
from apps.sites import resources
from apps.sites.rows import columns_of, server_samples
from payloads.record import FloatArray
from problems.data import FederatedData
from problems.errors import NOTHING
from problems.minimax import SYNTHETIC_PL
from problems.models import FlatModel
from strategies.rounds.schema import Schema

# the arrays of a model -> (n,) labels and (n,) scores of the rows that the sites hold out
Ask = Callable[[list[FloatArray]], tuple[NDArray[np.int8], NDArray[np.float64]]]


class RowEvaluation:
    """Evaluation of runs whose clients hold rows: by a network's scores of test rows, or a minimax problem's value."""

    def __call__(self, config: RunConfig, num_clients: int, /, *, pooled: bool = True) -> Evaluator:
        """Return the evaluator of a new run on the run config's data.

        Raises:
            DataError: the data cannot be loaded.
        """
        data = resources.federated_data(config.data, num_clients)
        evaluator = self.of_data(config, data)
        evaluator.columns = data.columns
        return evaluator

    def of_data(self, config: RunConfig, data: FederatedData) -> Evaluator:
        """Return the evaluator of a run whose data are loaded."""
        if resources.is_problem(config):
            return ProblemEvaluator(config, data.train if config.training.loss == SYNTHETIC_PL else data.test)
        return self.of_model(config, resources.new_model(config, data.input_shape), data)

    def of_sites(self, config: RunConfig, schema: Schema, ask: Ask) -> Evaluator:
        """Return the evaluator of a run whose sites read files of their own: on the server's test file, else on theirs.

        Raises:
            ConfigError: a minimax problem without a test file.
            DataError: the test file cannot be used.
        """
        test = server_samples(config, schema) if config.data.data_dir else None
        if resources.is_problem(config):
            if test is None:
                raise ConfigError(
                    "data-dir",
                    got=NOTHING,
                    allowed=f"a test set of the server's own, on which loss {config.training.loss!r} is evaluated",
                    hint="set data-dir to a test set",
                )
            evaluator: Evaluator = ProblemEvaluator(config, test)
        else:
            model = resources.new_model(config, schema.shape)
            evaluator = self.of_scores(
                config, HeldOutEvaluator(config, model, ask) if test is None else ModelEvaluator(config, model, test)
            )
        evaluator.columns = columns_of(schema)
        return evaluator

    # Hooks for algorithms with metrics of their own.

    def of_model(self, config: RunConfig, model: FlatModel, data: FederatedData) -> Evaluator:
        """Return a network's evaluator where the server has the clients' rows."""
        return ModelEvaluator(config, model, data.test)

    def of_scores(self, config: RunConfig, scored: ScoreEvaluator) -> Evaluator:
        """Return a network's evaluator where the server has only scores of test rows."""
        return scored


class CompositeEvaluation(RowEvaluation):
    """Evaluation of composite objectives: a loss plus a penalty."""

    def of_model(self, config: RunConfig, model: FlatModel, data: FederatedData) -> Evaluator:
        return CompositeEvaluator(config, model, data)

    def of_scores(self, config: RunConfig, scored: ScoreEvaluator) -> Evaluator:
        scored.layout = scored.model.layout
        penalty_terms(config, scored.layout)  # refuses a penalty that does not fit the model
        scored.count_nonzeros = True
        return scored


def make_evaluator(config: RunConfig, data: FederatedData) -> Evaluator:
    """The evaluator of a run whose clients hold rows of the run config's data set."""
    evaluation = config.algorithm.evaluation
    assert isinstance(evaluation, RowEvaluation)
    return evaluation.of_data(config, data)
