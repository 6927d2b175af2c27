"""The evaluation of runs without a model."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from apps.run_config.algorithm import Evaluator, RunConfig
from payloads.record import FloatArray
from payloads.settings import Settings
from problems.data import DataSpec


class NoEvaluator(Evaluator):
    """The evaluator of a run without a model."""

    summary = "no model"

    def start(self) -> list[FloatArray]:
        return [np.zeros(0)]

    def __call__(self, arrays: Sequence[FloatArray]) -> dict[str, float]:
        return {}

    def name_arrays(self, arrays: Sequence[FloatArray]) -> dict[str, Any]:
        return {}


class NoEvaluation:
    """The evaluation of a run without a model."""

    def __call__(self, config: RunConfig, num_clients: int, /, *, pooled: bool = True) -> Evaluator:
        return NoEvaluator()

    def check(self, strategy: str, spec: DataSpec, settings: Settings, /) -> None:
        """Accept every run config."""
