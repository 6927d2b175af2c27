"""SCAFFOLD (Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning", ICML 2020, Algorithm 1 with Option II).

| paper | here |
|---|---|
| x, y_i | the server's model, client i's model |
| c_i, c, the control variates | ``control`` of client i's memory, of the server's state |
| the change of c_i | `ControlChange` |
| eta_l, K; eta_g | ``learning-rate``, ``local-steps``; ``server-learning-rate`` |
| g_i, S, N | client i's stochastic gradient; the clients that answered; the number of all clients |

Option II's new c_i, c_i - c + (x - y_i) / (sum of the step sizes), equals the mean of the round's uncorrected
gradients, weighted by their step sizes. We compute that mean, since the difference of two close points loses digits.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from methods.method import ClientHalf, Method, Records, SampleGradients, Task, as_array
from methods.samples import LOSSES, Batch, SampleObjective, sample_batches, sample_objective
from methods.server import Plan, Replies, ServerHalf
from payloads.record import FloatArray, Payload, array
from payloads.settings import Settings
from problems.models.vectors import exact_mean

ScaffoldTask = Task[Settings, SampleObjective]


@dataclass(frozen=True, eq=False)
class ControlVariate(Payload):
    """c_i, a client's memory; or c, the server's state, which is also sent."""

    control: FloatArray = array("d")


@dataclass(frozen=True, eq=False)
class ControlChange(Payload):
    """A client's reply: its new control variate minus its old control variate."""

    change: FloatArray = array("d", combined="mean")


@dataclass(frozen=True)
class Carry:
    """A client's state between two steps.

    Attributes:
        x: y_i.
        own: The old c_i.
        correction: c - c_i.
        control: The mean of the round's gradients so far, the new c_i at the end.
        length: The sum of the round's step sizes so far.
    """

    x: Float[Tensor, "*stack d"]
    own: FloatArray
    correction: Float[Tensor, "*stack d"]
    control: Float[Tensor, "*stack d"]
    length: float


def recall(
    memory: ControlVariate | None, received: Float[np.ndarray, "d"] | None, x: Float[Tensor, "*stack d"]
) -> tuple[Float[np.ndarray, "*stack d"], Float[Tensor, "*stack d"]]:
    """Load a client's control variate at the start of its round.

    Args:
        memory: The memory of the client's newest round. None before the client's first round.
        received: c. None while c is zero.
        x: The server's model. The correction has the model's number type and device.

    Returns:
        c_i, which is zero before the client's first round, and the correction c - c_i.
    """
    own = np.zeros_like(as_array(x)) if memory is None else memory.control
    correction = np.negative(own) if received is None else np.subtract(received, own)
    return own, torch.from_numpy(correction).to(x)


def record_change(
    own: Float[np.ndarray, "*stack d"], control: Float[Tensor, "*stack d"]
) -> tuple[ControlChange, ControlVariate]:
    """Make the records of a client's new control variate at the end of its round.

    Args:
        own: The old c_i.
        control: The new c_i.

    Returns:
        The change to send, and the memory to keep.
    """
    new = as_array(control)
    return ControlChange(change=new - own), ControlVariate(control=new)


def start(
    x: Float[Tensor, "*stack d"], down: ControlVariate | None, memory: ControlVariate | None, task: ScaffoldTask
) -> Carry:
    own, correction = recall(memory, None if down is None else down.control, x)
    return Carry(x, own, correction, torch.zeros_like(x), 0.0)


def step(carry: Carry, batch: Batch, eta: float, task: ScaffoldTask) -> Carry:
    """Line 10: y_i <- y_i - eta_l (g_i(y_i) - c_i + c)."""
    gradient = task.f.gradient(carry.x, batch)
    length = carry.length + eta
    carry.control.lerp_(gradient, eta / length if length else 1.0)
    carry.x.sub_(gradient.add_(carry.correction), alpha=eta)
    return replace(carry, length=length)


def finish(carry: Carry, task: ScaffoldTask) -> tuple[Float[Tensor, "*stack d"], ControlChange, ControlVariate]:
    """Lines 12 and 13: send the change of c_i, and remember the new c_i."""
    return carry.x, *record_change(carry.own, carry.control)


def tell(x: Float[np.ndarray, "d"], state: ControlVariate | None, plan: Plan[Settings]) -> ControlVariate | None:
    """Line 3: send c, in the model's number type. Returns None while c is zero."""
    return None if state is None else ControlVariate(control=state.control.astype(x.dtype))


def new_control(
    control: Float64[np.ndarray, "d"] | None, replies: Replies[ControlChange]
) -> Float64[np.ndarray, "d"] | None:
    """Line 17: c <- c + |S|/N mean (change of c_i).

    Each client has its weight in the mean over all N sites, no matter which clients answered.

    Args:
        control: c. None stands for zero.
        replies: The replies of S, the clients that answered.

    Returns:
        The new c. None, which stands for zero, if a client has lost its c_i, since c and the c_i belong together.
    """
    if replies.states_lost:
        return None
    share = len(replies.clients) / replies.num_sites
    change: FloatArray = share * exact_mean([up.change for up in replies.ups], replies.shares)
    return change if control is None else control + change


def update(
    x: Float[np.ndarray, "d"], state: ControlVariate | None, replies: Replies[ControlChange], plan: Plan[Settings]
) -> tuple[Float[np.ndarray, "d"], ControlVariate | None]:
    """Lines 16 and 17: x <- x + eta_g mean (y_i - x), and the new c."""
    control = new_control(None if state is None else state.control, replies)
    point = replies.move(x, plan)
    return point, None if control is None else ControlVariate(control=control)


SCAFFOLD = Method(
    ClientHalf(sample_objective, sample_batches, start, step, finish),
    ServerHalf(tell=tell, update=update),
    Records(down=ControlVariate, up=ControlChange, memory=ControlVariate, state=ControlVariate),
    losses=LOSSES,
    offsets=True,
    findings=True,
    taken=SampleGradients(),
    adjusts=True,
    stacked=True,
    sends="control variates",
    # c is the mean of all c_i; docs/architecture.md explains the effect of a lost c_i
    joint_states=True,
    unread=("score",),
)
