"""Which `Evaluator` a run config asks for."""

from __future__ import annotations

from apps import resources
from apps.config import RunConfig
from apps.evaluation import Evaluator, ModelEvaluator, ProblemEvaluator
from apps.objective import CompositeEvaluator
from payloads.composite import CompositeSettings
from problems.data import FederatedData


def make_evaluator(config: RunConfig, data: FederatedData) -> Evaluator:
    """The evaluator of a run."""
    if resources.is_problem(config):
        return ProblemEvaluator(config, data)
    model = resources.new_model(config, data.input_shape)
    if isinstance(config.family, CompositeSettings):
        return CompositeEvaluator(config, model, data)
    return ModelEvaluator(config, model, data.test)
