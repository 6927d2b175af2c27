"""Local SGD with momentum, on the cross-entropy and on the ratio loss. The server averages models and momenta.

The ratio loss gives the samples of a rare class a larger weight (Wang, Xu, Wang, Zhu, "Addressing Class Imbalance in
Federated Learning", AAAI 2021; here for two classes).

| method | here |
|---|---|
| w | the model |
| m | ``momentum`` of `SGDMDown`, `LocalMomentum` |
| beta, the weight of a new gradient in m | ``momentum`` of `SGDMSettings` |
| alpha and beta of the ratio loss | ``ratio_alpha``, ``ratio_beta`` |
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from jaxtyping import Float
from torch import Tensor

from methods.checks import check_batches
from methods.method import (
    Checks,
    ClientHalf,
    Method,
    Records,
    SampleGradients,
    Task,
    as_array,
    as_tensor,
    momentum_step,
)
from methods.samples import LOSSES, Batch, SampleObjective, Slope, sample_batches, sample_objective
from methods.server import Plan, ServerHalf, average_records
from payloads.record import FloatArray, IntArray, Payload, array
from payloads.settings import Settings, setting
from problems.errors import InputError
from problems.objectives.classification import RATIO_LOSS, ratio_slope, ratio_weights


class SGDMSettings(Settings):
    """Hyper-parameters of local SGD with momentum (table ``sgdm``)."""

    momentum: float = setting("The weight of a new gradient in the momentum. 1: no momentum.", 0.1, gt=0, le=1)
    ratio_alpha: float = setting("The weight of every sample in ratio-loss.", 1.0, ge=0)
    ratio_beta: float = setting(
        "The weight in ratio-loss of the other class's samples over the own class's.", 0.1, ge=0
    )


@dataclass(frozen=True, eq=False)
class SGDMDown(Payload):
    """The record sent to the clients. The momentum is absent in round 1."""

    # negatives and positives of all sites together, for the ratio loss
    class_counts: IntArray | None = array(2, kind="int", optional=True)
    momentum: FloatArray | None = array("d", optional=True)


@dataclass(frozen=True, eq=False)
class LocalMomentum(Payload):
    """A client's reply, and the server's state: m."""

    momentum: FloatArray = array("d", combined="mean")


SGDMTask = Task[SGDMSettings, SampleObjective]


@dataclass(frozen=True)
class Carry:
    """A client's state between two steps: w; m, None before the first step of a run; the slope of the ratio loss."""

    x: Float[Tensor, "*stack d"]
    momentum: Float[Tensor, "*stack d"] | None
    slope: Slope | None


def start(x: Float[Tensor, "*stack d"], down: SGDMDown | None, memory: None, task: SGDMTask) -> Carry:
    """Weigh the ratio loss by the class counts of all sites or, if the message has none, by the site's own counts."""
    down, slope = down or SGDMDown(), None
    if task.loss == RATIO_LOSS:
        counts = task.site.class_counts if down.class_counts is None else down.class_counts
        weights = ratio_weights(counts, task.settings.ratio_alpha, task.settings.ratio_beta)
        slope = partial(ratio_slope, weights=weights)
    momentum = None if down.momentum is None else as_tensor(down.momentum, x).expand_as(x).contiguous()
    return Carry(x, momentum, slope)


def step(carry: Carry, batch: Batch, eta: float, task: SGDMTask) -> Carry:
    """m <- (1 - beta) m + beta grad f_i(w), w <- w - eta m."""
    gradient = task.f.gradient(carry.x, batch, carry.slope)
    momentum = momentum_step(carry.x, carry.momentum, gradient, task.settings.momentum, eta)
    return carry if momentum is carry.momentum else replace(carry, momentum=momentum)


def finish(carry: Carry, task: SGDMTask) -> tuple[Float[Tensor, "*stack d"], LocalMomentum, None]:
    assert carry.momentum is not None
    return carry.x, LocalMomentum(momentum=as_array(carry.momentum)), None


def tell(x: Float[np.ndarray, "d"], state: LocalMomentum | None, plan: Plan[SGDMSettings]) -> SGDMDown:
    """Send the mean momentum and, if the loss needs them, the class counts of all sites together."""
    counts = plan.class_counts.sum(axis=0) if plan.loss == RATIO_LOSS else None
    return SGDMDown(class_counts=counts, momentum=None if state is None else state.momentum)


def check_ratio(plan: Plan[SGDMSettings]) -> None:
    """Check the batch size, and that the ratio loss has both classes; a `Checks.sites`."""
    check_batches(plan)
    if plan.loss != RATIO_LOSS:
        return
    try:
        ratio_weights(plan.class_counts.sum(axis=0), plan.settings.ratio_alpha, plan.settings.ratio_beta)
    except ValueError as error:
        got, hint = f"{plan.loss!r} with all sites together: {error}", "set positive-label, or add rows"
        raise InputError("loss", got=got, allowed="both classes", hint=hint) from None


LOCAL_SGDM = Method(
    ClientHalf(sample_objective, sample_batches, start, step, finish),
    ServerHalf(tell=tell, update=average_records),
    Records(down=SGDMDown, up=LocalMomentum, state=LocalMomentum),
    SGDMSettings,
    losses=LOSSES,
    offsets=True,
    findings=True,
    taken=SampleGradients(),
    adjusts=True,
    stacked=True,
    checks=Checks(sites=check_ratio),
    averages=True,
    table="sgdm",
    sends="momentum",
)

# the class counts of all sites together determine the weights of the ratio loss
LOCAL_SGDM_RATIO = replace(
    LOCAL_SGDM,
    losses=(RATIO_LOSS,),
    loss=RATIO_LOSS,
    offsets=False,
    findings=False,
    sends="momentum; class counts of all sites together",
)
