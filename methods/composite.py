"""Composite federated learning (Zhang, Hu, Johansson, "Composite Federated Learning with Heterogeneous Data", 2023,
Algorithm 1): a smooth f plus a penalty g that has a prox, exact on unequal sites.

| paper | here |
|---|---|
| x-bar^r, pre-proximal | the server's model x |
| z-hat_{i,t}^r, z_{i,t}^r | ``pre`` and ``z`` of `Carry` |
| c_i^r | ``correction`` of `Carry`, `correct` |

`methods.penalised` has the other symbols.

A client computes its correction for a round when that round's model arrives, from its memory of the previous round. If
a model arrives for the round in which the client has just trained, the server has discarded that round: the client
repeats the round with the same correction. Without a memory of the previous round, the correction is 0. Each reply
names the round of the memory from which the client started, so the server notices a lost memory and resets all clients.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from torch import Tensor

from methods.method import Records, as_array, as_tensor
from methods.penalised import (
    PenalisedPlan,
    PenalisedTask,
    between,
    local,
    make_client,
    make_method,
    make_server,
    prox_at,
)
from methods.samples import Batch
from methods.server import Replies
from payloads.record import FloatArray, IntArray, Payload, array


@dataclass(frozen=True, eq=False)
class CorrectionState(Payload):
    """A client's memory of its newest round r."""

    server_round: IntArray = array(1, kind="int")
    # c_i^r, in case the round is repeated
    correction: FloatArray = array("d")
    # P(x-bar^r) and the mean of the round's gradients: c_i^{r+1} is computed from them
    start: FloatArray = array("d")
    gradient: FloatArray = array("d")


@dataclass(frozen=True)
class Carry:
    """A client's state between two steps: z-hat, z, P(x-bar), c_i, and the step t = 0, 1, ..."""

    pre: Float[Tensor, "*stack d"]
    z: Float[Tensor, "*stack d"]
    start: FloatArray
    correction: Float[Tensor, "*stack d"]
    t: int


def correct(
    point: Float[np.ndarray, "*stack d"], memory: CorrectionState | None, task: PenalisedTask
) -> Float[np.ndarray, "*stack d"]:
    """Line 19: c_i^{r+1} = (P(x-bar^r) - x-bar^{r+1}) / eta-tilde - the mean of the client's gradients in round r.

    The correction is 0 in the first round (line 3), and without a memory of round r. If round r + 1 is repeated, the
    correction is the same as before.

    Args:
        point: x-bar^{r+1}.
        memory: The memory of the client's newest round: r, unless the client has missed a round or repeats a round.
        task: The client's task in round r + 1.
    """
    newest = 0 if memory is None else int(memory.server_round[0])
    if memory is None or newest not in (task.server_round - 1, task.server_round):
        return np.zeros_like(point)
    if newest == task.server_round:
        return memory.correction
    correction: FloatArray = (memory.start - point) / between(task.training, newest) - memory.gradient
    return correction


def start(x: Float[Tensor, "*stack d"], down: None, memory: CorrectionState | None, task: PenalisedTask) -> Carry:
    """Lines 18 and 19, the end of the previous round, then line 6: z-hat = z = P_{eta-tilde g}(x-bar)."""
    correction = as_tensor(correct(as_array(x), memory, task), x)
    z = task.f.penalty.prox(x, between(task.training, task.server_round - 1), out=x)
    return Carry(z.clone(), z, as_array(z).copy(), correction, 0)


def step(carry: Carry, batch: Batch, eta: float, task: PenalisedTask) -> Carry:
    """Lines 8 to 11: z-hat <- z-hat - eta (grad f_i(z) + c_i), then z <- P_{(t+1) eta g}(z-hat)."""
    carry.pre.sub_(task.f.gradient(carry.z, batch).add_(carry.correction), alpha=eta)
    t = carry.t + 1
    if t < task.training.local_steps:  # nothing is computed at the last z
        task.f.penalty.prox(carry.pre, t * eta, out=carry.z)
    return replace(carry, t=t)


def finish(carry: Carry, task: PenalisedTask) -> tuple[Float[Tensor, "*stack d"], None, CorrectionState]:
    """Line 13: send z-hat. Keep the mean of the round's gradients, computed from the distance that z-hat has moved."""
    correction, length = as_array(carry.correction), local(task.training, task.server_round) * task.training.local_steps
    gradient = (carry.start - as_array(carry.pre)) / length - correction
    number = np.array([task.server_round])
    memory = CorrectionState(server_round=number, correction=correction, start=carry.start, gradient=gradient)
    return carry.pre, None, memory


def update(
    x: Float[np.ndarray, "d"], state: None, replies: Replies[Payload], plan: PenalisedPlan
) -> tuple[Float[np.ndarray, "d"], None]:
    """Line 15: x-bar <- P(x-bar) + eta_g (mean of z-hat - P(x-bar))."""
    begun = prox_at(x, between(plan.training, plan.server_round - 1), plan)
    return replies.move(begun, plan), None


def output(x: Float[np.ndarray, "d"], plan: PenalisedPlan) -> Float[np.ndarray, "d"]:
    """Line 21: P(x-bar), a round's model."""
    return prox_at(x, between(plan.training, plan.server_round), plan)


COMPOSITE = make_method(
    make_client(start, step, finish),
    make_server(update=update, output=output),
    Records(memory=CorrectionState),
    # the c_i sum to zero: if one were lost, the method would minimise f + <mean c_i, x> + g
    needs_all_clients="keeps corrections that add up to zero only over all clients",
    retries_failed=True,
    joint_states=True,
    objection=(
        "composite's clients compute their corrections from the models that they receive, and a model that is clipped "
        "or noised in transit makes the corrections of all further rounds wrong; fedmid, fedda and fast-fedda have no "
        "corrections"
    ),
)
