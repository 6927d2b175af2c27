"""Which `Evaluator` a run config asks for."""

from __future__ import annotations

from apps import resources
from apps.config import RunConfig
from apps.evaluation import Evaluator, ModelEvaluator, ProblemEvaluator
from apps.objective import CompositeEvaluator
from apps.vertical_evaluation import VerticalEvaluator
from payloads.composite import CompositeSettings
from problems.data import FederatedData


def evaluator_for(config: RunConfig, num_clients: int, *, pooled: bool = True) -> Evaluator:
    """The evaluator of a run with so many clients.

    Args:
        pooled: whether the clients' data are those of the run config; a vertical run needs none at the server.

    Raises:
        DataError: the data cannot be had.
    """
    if config.algorithm.strategy.vertical:
        return VerticalEvaluator(config, num_clients, pooled=pooled)
    return make_evaluator(config, resources.federated_data(config.data, num_clients))


def make_evaluator(config: RunConfig, data: FederatedData) -> Evaluator:
    """The evaluator of a run whose clients hold rows, on their data."""
    if resources.is_problem(config):
        return ProblemEvaluator(config, data)
    model = resources.new_model(config, data.input_shape)
    if isinstance(config.family, CompositeSettings):
        return CompositeEvaluator(config, model, data)
    return ModelEvaluator(config, model, data.test)
