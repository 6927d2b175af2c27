"""Shared by the methods for f + g: a smooth f, a penalty g used by its prox only, and the step sizes.

f_i is the mean loss of a site's samples plus a ridge term, and P_{eta g}(w) = argmin_u eta g(u) + |u - w|^2 / 2.

| paper (Zhang, Hu, Johansson 2023) | here                                                         |
|-----------------------------------|--------------------------------------------------------------|
| theta_1, theta_2                  | ``weight``, ``ridge``                                        |
| eta, eta_g, tau                   | ``learning-rate``, ``server-learning-rate``, ``local-steps`` |
| eta-tilde = eta eta_g tau         | `between`                                                    |

All steps of a round use the eta of its first local iteration: drops of the learning rate wait for the next round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from methods.method import ClientHalf, Method, Phase, Plan, Records, ServerHalf, Task
from methods.samples import Batch, SampleObjective, sample_batches
from payloads.record import FloatArray, Payload, array
from payloads.settings import Settings, TrainingSettings
from problems.models import FlatModel, Layout
from problems.objectives.classification import SAMPLE_LOSSES
from problems.objectives.composite import linear_smoothness
from problems.penalties import Penalty, make_penalty, selected
from problems.site import Site

# the exchange before round 1: clients send how smooth their f_i is
SMOOTHNESS = "smoothness"

PenaltyName = Literal[
    "none", "l1", "l2", "elastic-net", "group-lasso", "nuclear-norm", "box", "l2-ball", "simplex", "nonnegative"
]


class CompositeSettings(Settings):
    """What is minimised beside the loss (table ``composite``): ridge/2 ||x||^2, which belongs to f, and the penalty."""

    penalty: PenaltyName = Field("l1", description=f"one of {', '.join(get_args(PenaltyName))}")
    weight: float = Field(1e-4, ge=0, description="the penalty's factor, a number >= 0 (no effect on constraint sets)")
    ridge: float = Field(0.01, ge=0, description="factor of the smooth term ||x||^2 / 2, a number >= 0")
    parameters: str = Field(
        "auto",
        min_length=1,
        description="what penalty and ridge act on: auto (all but biases), all, or names with commas",
    )
    ratio: float = Field(0.5, ge=0, le=1, description="share of l1 in elastic-net, in [0, 1]")
    groups: Literal["rows", "columns"] = Field(
        "rows", description="group-lasso's groups: rows (the weights of a unit) or columns (those of an input)"
    )
    lower: float | Literal["none"] = Field("none", description="lower bound of box, a number, or none")
    upper: float | Literal["none"] = Field("none", description="upper bound of box, a number >= lower, or none")
    radius: float = Field(1.0, gt=0, description="radius of l2-ball, sum of simplex, a number > 0")
    strong_convexity: Annotated[float, Field(ge=0)] | Literal["auto"] = Field(
        "auto", description="fast-fedda's mu, a number >= 0, or auto: composite.ridge"
    )
    anchor_weight: Annotated[float, Field(gt=0)] | Literal["auto"] = Field(
        "auto", description="fast-fedda's gamma, inverse of its first step, a number > 0, or auto: 1 / learning-rate"
    )

    @property
    def penalty_options(self) -> dict[str, Any]:
        """The arguments of `problems.penalties.make_penalty`."""
        options = self.model_dump(include={"weight", "ratio", "radius", "groups", "parameters", "lower", "upper"})
        unbounded = {"lower": -math.inf, "upper": math.inf}
        return {name: unbounded[name] if value == "none" else value for name, value in options.items()}

    @property
    def mu(self) -> float:
        """fast-fedda's strong convexity."""
        return self.ridge if isinstance(self.strong_convexity, str) else self.strong_convexity


@dataclass(frozen=True, eq=False)
class Smoothness(Payload):
    """Up, before round 1: a Lipschitz constant of the gradient of f_i, where one is known."""

    estimate: FloatArray | None = array(1, optional=True)


class PenalisedObjective(SampleObjective):
    """f_i with its ridge term, and the penalty g."""

    def __init__(
        self, model: FlatModel, site: Site, loss: str, training: TrainingSettings, settings: CompositeSettings
    ) -> None:
        super().__init__(model, site, loss, training, settings)
        self.penalty, self.ridge = _terms(settings, model.layout, model.dtype, model.device, model.frozen)


@lru_cache(maxsize=64)
def _terms(
    settings: CompositeSettings,
    layout: Layout,
    dtype: torch.dtype,
    device: torch.device,
    frozen: tuple[tuple[int, int], ...],
) -> tuple[Penalty, Tensor | None]:
    """The penalty, and (d,) the factors of the ridge term, if there is one."""
    penalty = make_penalty(settings.penalty, layout, **settings.penalty_options)
    if not settings.ridge:
        return penalty, None
    ridge = selected(layout, settings.parameters).to(device, dtype) * settings.ridge
    for start, stop in frozen:
        ridge[start:stop] = 0
    return penalty, ridge


PenalisedTask = Task[CompositeSettings, PenalisedObjective]
PenalisedPlan = Plan[CompositeSettings]


def tell_smoothness(x: Tensor, down: None, task: PenalisedTask) -> Smoothness:
    """The Lipschitz constant of grad f_i, where the model is linear."""
    largest = linear_smoothness(task.f.model.module, task.site.features, SAMPLE_LOSSES[task.loss])
    if largest is None:
        return Smoothness()
    return Smoothness(estimate=np.array([largest + task.settings.ridge], dtype=np.dtype(task.training.dtype)))


def local(training: TrainingSettings, server_round: int) -> float:
    """eta of a round; rounds count from 1."""
    return training.learning_rate_at((server_round - 1) * training.local_steps)


def between(training: TrainingSettings, server_round: int) -> float:
    """eta-tilde = eta eta_g tau of the round that made a model: the parameter of that model's prox.

    Round 0, which stands for the initial model, has that of round 1.
    """
    return local(training, max(server_round, 1)) * training.server_learning_rate * training.local_steps


def prox_at(x: FloatArray, step: float, plan: PenalisedPlan) -> FloatArray:
    """(d,) P_{step g}(x) at the server, in the number type of x."""
    layout = plan.layout or (("parameters", (len(x), 1)),)
    penalty = _terms(plan.settings, layout, torch.float64, torch.device("cpu"), ())[0]
    result: FloatArray = penalty.prox(torch.from_numpy(np.array(x)), step).numpy()
    return result


def draw_batches(task: PenalisedTask, down: None) -> Iterator[tuple[float, Batch]]:
    """The round's eta and the mini-batch of each of its iterations."""
    eta = local(task.training, task.server_round)
    for _, batch in sample_batches(task, down):
        yield eta, batch


def make_method(
    start: Callable[..., Any],
    step: Callable[..., Any],
    finish: Callable[..., Any],
    server: ServerHalf,
    memory: type[Payload] | None = None,
) -> Method:
    """A method for f + g; ``memory``: what its clients keep between rounds."""
    client = ClientHalf(PenalisedObjective, draw_batches, start, step, finish)
    phases = {SMOOTHNESS: Phase(Smoothness, tell_smoothness)}
    return Method(client, server, Records(memory=memory), CompositeSettings, phases)
