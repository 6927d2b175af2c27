"""Which `Evaluator` a run config asks for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from apps import resources
from apps.config import ConfigError, RunConfig
from apps.evaluation import Evaluator, HeldOutEvaluator, ModelEvaluator, ProblemEvaluator, ScoreEvaluator
from apps.objective import CompositeEvaluator, PenalisedEvaluator
from apps.own_data import columns_of, reads_own, server_samples
from apps.vertical_evaluation import VerticalEvaluator
from payloads.composite import CompositeSettings
from payloads.record import FloatArray
from problems.data import FederatedData
from problems.errors import NOTHING
from problems.minimax import SYNTHETIC_PL
from strategies.schema import Schema

# the arrays of a model -> (n,) labels and (n,) scores of the rows that the sites hold out
Ask = Callable[[list[FloatArray]], tuple[NDArray[np.int8], NDArray[np.float64]]]


def evaluator_for(config: RunConfig, num_clients: int, *, pooled: bool = True) -> Evaluator:
    """The evaluator of a run with so many clients.

    Args:
        pooled: whether the clients' data are those of the run config; a vertical run needs none at the server.

    Raises:
        DataError: the data cannot be had.
    """
    if config.algorithm.strategy.vertical:
        return VerticalEvaluator(config, num_clients, pooled=pooled)
    data = resources.federated_data(config.data, num_clients)
    evaluator = make_evaluator(config, data)
    evaluator.columns = data.columns
    return evaluator


def own_evaluator(config: RunConfig, schema: Schema, ask: Ask) -> Evaluator:
    """The evaluator of a run whose sites read files of their own: on the server's test file, or by asking the sites.

    Raises:
        ConfigError: a problem of the user's own without a test file.
        DataError: the test file cannot be used.
    """
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
        scored: ScoreEvaluator = (
            HeldOutEvaluator(config, model, ask) if test is None else ModelEvaluator(config, model, test)
        )
        evaluator = PenalisedEvaluator(config, scored) if isinstance(config.family, CompositeSettings) else scored
    evaluator.columns = columns_of(schema)
    return evaluator


def make_evaluator(config: RunConfig, data: FederatedData) -> Evaluator:
    """The evaluator of a run whose clients hold rows of the run config's data set."""
    if resources.is_problem(config):
        return ProblemEvaluator(config, data.train if config.training.loss == SYNTHETIC_PL else data.test)
    model = resources.new_model(config, data.input_shape)
    if isinstance(config.family, CompositeSettings):
        return CompositeEvaluator(config, model, data)
    return ModelEvaluator(config, model, data.test)
