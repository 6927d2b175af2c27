"""Which `Evaluator` a run config asks for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from apps.evaluation.composite import CompositeEvaluator, PenalisedEvaluator
from apps.evaluation.models import HeldOutEvaluator, ModelEvaluator, ProblemEvaluator, ScoreEvaluator
from apps.evaluation.vertical import VerticalEvaluator
from apps.run_config.algorithm import RunConfig
from apps.run_config.evaluator import Evaluator
from apps.run_config.settings import ConfigError
from apps.sites import resources
from apps.sites.own_data import columns_of, reads_own, server_samples
from payloads.record import FloatArray
from problems.data import FederatedData
from problems.errors import NOTHING
from problems.minimax import SYNTHETIC_PL
from problems.models import FlatModel
from strategies.rounds.schema import Schema

# the arrays of a model -> (n,) labels and (n,) scores of the rows that the sites hold out
Ask = Callable[[list[FloatArray]], tuple[NDArray[np.int8], NDArray[np.float64]]]


class RowEvaluation:
    """Of runs whose clients hold rows: a network's scores of test rows, or the value of a problem of its own."""

    def make(self, config: RunConfig, num_clients: int, *, pooled: bool) -> Evaluator:
        """The evaluator of a run that begins; its data must be those of the run config.

        Raises:
            DataError: the data cannot be had.
        """
        data = resources.federated_data(config.data, num_clients)
        evaluator = self.of_data(config, data)
        evaluator.columns = data.columns
        return evaluator

    def of_data(self, config: RunConfig, data: FederatedData) -> Evaluator:
        """The evaluator of a run on data that are at hand."""
        if resources.is_problem(config):
            return ProblemEvaluator(config, data.train if config.training.loss == SYNTHETIC_PL else data.test)
        return self.of_model(config, resources.new_model(config, data.input_shape), data)

    def of_sites(self, config: RunConfig, schema: Schema, ask: Ask) -> Evaluator:
        """The evaluator of a run whose sites read files of their own; see `own_evaluator`."""
        assert reads_own(config)
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

    # What an algorithm with metrics of its own overrides.

    def of_model(self, config: RunConfig, model: FlatModel, data: FederatedData) -> Evaluator:
        """What measures a network where the clients' rows are at hand."""
        return ModelEvaluator(config, model, data.test)

    def of_scores(self, config: RunConfig, scored: ScoreEvaluator) -> Evaluator:
        """What measures a network where only scores of test rows are at hand."""
        return scored


class CompositeEvaluation(RowEvaluation):
    """Of composite objectives, a loss plus a penalty."""

    def of_model(self, config: RunConfig, model: FlatModel, data: FederatedData) -> Evaluator:
        return CompositeEvaluator(config, model, data)

    def of_scores(self, config: RunConfig, scored: ScoreEvaluator) -> Evaluator:
        return PenalisedEvaluator(config, scored)


class VerticalEvaluation:
    """Of vertical runs, whose parties measure themselves; the server needs no data."""

    def make(self, config: RunConfig, num_clients: int, *, pooled: bool) -> Evaluator:
        """The evaluator of a run that begins."""
        return VerticalEvaluator(config, num_clients, pooled=pooled)


def evaluator_for(config: RunConfig, num_clients: int, *, pooled: bool = True) -> Evaluator:
    """The evaluator of a run with so many clients.

    Args:
        pooled: whether the clients' data are those of the run config; a vertical run needs none at the server.

    Raises:
        DataError: the data cannot be had.
    """
    return config.algorithm.evaluation.make(config, num_clients, pooled=pooled)


def own_evaluator(config: RunConfig, schema: Schema, ask: Ask) -> Evaluator:
    """The evaluator of a run whose sites read files of their own: on the server's test file, or by asking the sites.

    Raises:
        ConfigError: a problem of the user's own without a test file.
        DataError: the test file cannot be used.
    """
    return _of_rows(config).of_sites(config, schema, ask)


def make_evaluator(config: RunConfig, data: FederatedData) -> Evaluator:
    """The evaluator of a run whose clients hold rows of the run config's data set."""
    return _of_rows(config).of_data(config, data)


def _of_rows(config: RunConfig) -> RowEvaluation:
    evaluation = config.algorithm.evaluation
    assert isinstance(evaluation, RowEvaluation)
    return evaluation
