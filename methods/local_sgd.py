"""Local SGD (Stich 2019, "Local SGD Converges Fast and Communicates Little"): K steps at every site, then the mean."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from methods.adam import Point as Point
from methods.adam import adam_step
from methods.method import ClientHalf, Method, SampleGradients, Task
from methods.samples import LOSSES, Batch, SampleObjective, sample_batches, sample_objective
from payloads.settings import Settings

SGDTask = Task[Settings, SampleObjective]


def start(x: Float[Tensor, "*stack d"], down: None, memory: None, task: Task[Any, Any]) -> Point:
    return Point(x)


def step(carry: Point, batch: Batch, eta: float, task: SGDTask) -> Point:
    """w <- w - eta grad f_i(w), or Adam's step."""
    if task.training.has_adam:
        return adam_step(carry, task.f.gradient(carry.x, batch), eta, task.f.adjust)
    task.f.descend(carry.x, batch, eta)
    return carry


def finish(carry: Any, task: Task[Any, Any]) -> tuple[Float[Tensor, "*stack d"], None, None]:
    """Send back the carry's point only."""
    return carry.x, None, None


LOCAL_SGD = Method(
    ClientHalf(sample_objective, sample_batches, start, step, finish),
    losses=LOSSES,
    offsets=True,
    findings=True,
    keeps_norms=True,
    averages=True,
    plain_clients=True,
    taken=SampleGradients(),
    adjusts=True,
    stacked=True,
    has_adam=True,
)
