"""FedMid and FedDA, the paper's FedDualAvg (Yuan, Zaheer, Reddi, "Federated Composite Optimization", ICML 2021).

FedMid takes proximal steps at the clients and at the server. FedDA moves a dual point by gradients at the point's prox.
The parameter of this prox is the sum of all step sizes of the run so far.

In the formulas f_i is a client's loss, g the penalty, P_{s g} the prox of g with parameter s (see `methods.penalised`),
eta the local step size, eta_g the server's, K the number of local steps, and "mean" the mean of the clients' points.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from torch import Tensor

from methods import local_sgd
from methods.local_sgd import Point
from methods.penalised import PenalisedPlan, PenalisedTask, between, make_client, make_method, make_server, prox_at
from methods.samples import Batch
from methods.server import Replies
from payloads.record import Payload
from payloads.settings import TrainingSettings


def step_mid(carry: Point, batch: Batch, eta: float, task: PenalisedTask) -> Point:
    """Take FedMid's local step: x <- P_{eta g}(x - eta grad f_i(x))."""
    x = carry.x.sub_(task.f.gradient(carry.x, batch), alpha=eta)
    task.f.penalty.prox(x, eta, out=x)
    return carry


def update_mid(
    x: Float[np.ndarray, "d"], state: None, replies: Replies[Payload], plan: PenalisedPlan
) -> tuple[Float[np.ndarray, "d"], None]:
    """Take FedMid's step at the server: x <- P_{eta_g eta K g}(x + eta_g (mean - x))."""
    moved = replies.move(x, plan)
    return prox_at(moved, between(plan.training, plan.server_round), plan), None


FEDMID = make_method(make_client(local_sgd.start, step_mid, local_sgd.finish), make_server(update=update_mid))


@dataclass(frozen=True)
class Carry:
    """A client's state between two steps: the dual point z, its prox w, and the prox parameter of the next step."""

    z: Float[Tensor, "*stack d"]
    w: Float[Tensor, "*stack d"]
    length: float


def until(training: TrainingSettings, server_round: int) -> float:
    """Return the prox parameter of a round's model: the sum of `between` over all rounds up to this round.

    Args:
        training: The settings.
        server_round: The round. 0: the sum is empty.
    """
    if training.has_constant_steps:
        return server_round * between(training, 1)
    return sum(between(training, number) for number in range(1, server_round + 1))


def start(x: Float[Tensor, "*stack d"], down: None, memory: None, task: PenalisedTask) -> Carry:
    return Carry(x.clone(), x, until(task.training, task.server_round - 1))


def step(carry: Carry, batch: Batch, eta: float, task: PenalisedTask) -> Carry:
    """w = P_{(eta_g eta r K + eta k) g}(z), z <- z - eta grad f_i(w), in rounds r and at steps k = 0, 1, ..."""
    w = task.f.penalty.prox(carry.z, carry.length, out=carry.w)
    carry.z.sub_(task.f.gradient(w, batch), alpha=eta)
    return replace(carry, length=carry.length + eta)


def finish(carry: Carry, task: PenalisedTask) -> tuple[Float[Tensor, "*stack d"], None, None]:
    return carry.z, None, None


def update(
    x: Float[np.ndarray, "d"], state: None, replies: Replies[Payload], plan: PenalisedPlan
) -> tuple[Float[np.ndarray, "d"], None]:
    """Take FedDA's step at the server: z <- z + eta_g (mean - z)."""
    return replies.move(x, plan), None


def output(x: Float[np.ndarray, "d"], plan: PenalisedPlan) -> Float[np.ndarray, "d"]:
    """Return a round's model: the prox of the dual point."""
    return prox_at(x, until(plan.training, plan.server_round), plan)


FEDDA = make_method(
    make_client(start, step, finish),
    make_server(update=update, output=output),
    sends="the dual point instead of the model",
)
