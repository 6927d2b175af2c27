"""The exchange before round 1 in which clients say how smooth their f_i is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from methods.method import Phase, Task
from methods.samples import SampleObjective
from payloads.record import FloatArray, Payload, array
from problems.objectives.classification import SAMPLE_LOSSES
from problems.objectives.composite import linear_smoothness

SMOOTHNESS = "smoothness"


@dataclass(frozen=True, eq=False)
class Smoothness(Payload):
    """Up, before round 1: a Lipschitz constant of the gradient of f_i, where one is known."""

    estimate: FloatArray | None = array(1, optional=True)


def tell_smoothness(x: Tensor, down: None, task: Task[Any, SampleObjective]) -> Smoothness:
    """The Lipschitz constant of grad f_i, where the model is linear."""
    largest = linear_smoothness(task.f.model.module, task.site.features, SAMPLE_LOSSES[task.loss])
    if largest is None:
        return Smoothness()
    return Smoothness(estimate=np.array([largest + task.settings.ridge], dtype=np.dtype(task.training.dtype)))


PHASES = {SMOOTHNESS: Phase(Smoothness, tell_smoothness)}
