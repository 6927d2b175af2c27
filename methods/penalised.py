"""Functions that the methods for f + g share, for a smooth f and a penalty g of which only the prox is used.

f is the mean of the sites' f_i, and f_i the mean loss of a site's samples plus a ridge term. The prox of g with
parameter eta is P_{eta g}(w) = argmin_u eta g(u) + |u - w|^2 / 2.

| paper (Zhang, Hu, Johansson 2023) | here |
|---|---|
| theta_1, theta_2, the weights of the penalty and of the ridge term | ``weight``, ``ridge`` |
| eta, eta_g, tau | ``learning-rate``, ``server-learning-rate``, ``local-steps`` |
| eta-tilde = eta eta_g tau, the prox parameter of a round's model | `between` |

All steps of a round use the eta of its first local step: drops of the learning rate take effect in the next round.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from logging import getLogger
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from methods.method import ClientHalf, Method, Phase, Task
from methods.samples import Batch, SampleObjective, sample_batches
from methods.server import Ask, Exchanges, Plan, ServerHalf
from payloads.record import FloatArray, Payload, array
from payloads.settings import Settings, TrainingSettings, setting
from problems.models import FlatModel, Layout
from problems.models.vectors import exact_mean
from problems.objectives.classification import CROSS_ENTROPY, SAMPLE_LOSSES, SQUARED_ERROR
from problems.objectives.composite import linear_smoothness, ridge_factors
from problems.objectives.number_losses import SQUARED
from problems.penalties import Penalty, PenaltySettings, make_penalty
from problems.site import Site

# the exchange before round 1, in which clients report a Lipschitz constant of their gradient
SMOOTHNESS = "smoothness"


class CompositeSettings(Settings, PenaltySettings):
    """Table ``composite``: the penalty and the ridge term, and the constants of Fast-FedDA."""

    strong_convexity: NonNegativeFloat | Literal["auto"] = setting(
        "The mu of fast-fedda. auto: composite.ridge.", "auto"
    )
    anchor_weight: PositiveFloat | Literal["auto"] = setting(
        "The gamma of fast-fedda, the inverse of its first step. auto: 1 / learning-rate.", "auto"
    )


@lru_cache(maxsize=64)
def share_penalty(settings: PenaltySettings, layout: Layout, device: torch.device) -> Penalty:
    """Make the penalty g, once for all clients of a process.

    Args:
        settings: The run's table ``composite``.
        layout: The flat model's layout, since a penalty may treat weights and biases differently.
        device: The device of the penalty's tensors; each device has a separate penalty.
    """
    return make_penalty(settings, layout)


class PenalisedObjective(SampleObjective):
    """f_i with its ridge term, and the penalty g."""

    def __init__(
        self, model: FlatModel, site: Site, loss: str, training: TrainingSettings, settings: CompositeSettings
    ) -> None:
        super().__init__(model, site, loss, training, settings)
        self.penalty = share_penalty(settings, model.layout, model.device)
        if settings.ridge:
            self.ridge = ridge_factors(settings, model.layout, model.dtype, model.device)


PenalisedTask = Task[CompositeSettings, PenalisedObjective]
PenalisedPlan = Plan[CompositeSettings]


def local(training: TrainingSettings, server_round: int) -> float:
    """Return the eta of a round, the same for all its local steps.

    Args:
        server_round: The round's number, counted from 1.
    """
    return training.learning_rate_at((server_round - 1) * training.local_steps)


def between(training: TrainingSettings, server_round: int) -> float:
    """Return eta-tilde = eta eta_g tau of the round that made a model: the parameter of that model's prox.

    Args:
        server_round: The round's number, counted from 1. Round 0, the initial model, has the eta of round 1.
    """
    return local(training, max(server_round, 1)) * training.server_learning_rate * training.local_steps


def prox_at(x: Float[np.ndarray, "d"], step: float, plan: PenalisedPlan) -> Float[np.ndarray, "d"]:
    """Compute P_{step g}(x) at the server.

    Args:
        x: A pre-proximal point, which is not changed; the result has its number type.
        step: The parameter of the prox, a number >= 0, such as a product of step sizes.
        plan: The plan; provides g's settings and, if it is known, the model's layout.
    """
    layout = plan.layout or (("parameters", (len(x), 1)),)
    penalty = share_penalty(plan.settings, layout, torch.device("cpu"))
    result: FloatArray = penalty.prox(torch.from_numpy(np.array(x)), step).numpy()
    return result


def draw_batches(task: PenalisedTask, down: None) -> Iterator[tuple[float, Batch]]:
    """Draw a round's mini-batches; a `ClientHalf.batches`.

    Args:
        down: None, since only the model is sent.

    Returns:
        The round's eta, the same every time, and the batch of each iteration.
    """
    eta = local(task.training, task.server_round)
    return ((eta, batch) for _, batch in sample_batches(task, down))


@dataclass(frozen=True, eq=False)
class Smoothness(Payload):
    """A client's answer before round 1: a Lipschitz constant of the gradient of f_i, if the constant is known."""

    estimate: FloatArray | None = array(1, optional=True, combined="mean")


def tell_smoothness(x: Float[Tensor, "d"], down: None, task: PenalisedTask) -> Smoothness:
    """Answer the phase `SMOOTHNESS` with the Lipschitz constant of grad f_i.

    Args:
        x: The message's model; the constant does not depend on it.
        down: None, since only the model is sent.
        task: The client's task; the constant is over all its samples.

    Returns:
        A record with the constant if the model is linear, else an empty record.
    """
    largest = linear_smoothness(task.f.model.module, task.site.features, SAMPLE_LOSSES[task.loss])
    if largest is None:
        return Smoothness()
    return Smoothness(estimate=np.array([largest + task.settings.ridge], dtype=np.dtype(task.training.dtype)))


def warn_of_steps(x: Float[np.ndarray, "d"], plan: PenalisedPlan) -> Exchanges[None]:
    """Warn if the steps are too long for the mean smoothness of the sites' f_i; a `ServerHalf.prologue`.

    Args:
        x: The initial model.
        plan: The plan of round 0.
    """
    answers = yield Ask(SMOOTHNESS, plan.everyone)
    known = answers.having("estimate")
    if not known.ups:
        return
    estimates = [up.estimate for up in known.ups]
    smoothness, step = float(exact_mean(estimates, known.weights)[0]), between(plan.training, 1)
    if step * smoothness > 2:
        text = (
            "learning-rate * server-learning-rate * local-steps = %g is above 2 / L = %.4g, with the Lipschitz "
            "estimate L = %.4g, averaged over the sites: the run may diverge"
        )
        getLogger("flwr").warning(text, step, 2 / smoothness, smoothness)


make_client = partial(ClientHalf, PenalisedObjective, draw_batches)
make_server = partial(ServerHalf, prologue=warn_of_steps)
make_method = partial(
    Method,
    settings=CompositeSettings,
    stacked=True,
    phases={SMOOTHNESS: Phase(Smoothness, tell_smoothness)},
    table="composite",
    losses=(CROSS_ENTROPY, SQUARED_ERROR, SQUARED),
    unread=("score",),
    equal_steps="needs equally many local steps at all sites for its proximal steps",
)
