"""Composite federated learning (Zhang, Hu, Johansson, "Composite Federated Learning with Heterogeneous Data", 2023,
Algorithm 1): a smooth f plus a penalty g that has a prox, exact on unequal sites.

| paper                       | here                                                                 |
|-----------------------------|----------------------------------------------------------------------|
| x-bar^r, pre-proximal       | the server's model x                                                 |
| z-hat_{i,t}^r, z_{i,t}^r    | ``pre`` and ``z`` of `Carry`                                         |
| c_i^r                       | ``correction`` of `Carry`, `correct`                                 |
| eta, eta_g, tau             | ``learning-rate``, ``server-learning-rate``, ``local-steps``         |
| eta-tilde = eta eta_g tau   | `methods.penalised.between`                                          |

A client makes its correction for a round when that round's model comes down, from what it kept of the round before. A
model of the round it has just trained in says that the server discarded that round: it trains again, with the
correction it had, so that a round whose upload was lost leaves no trace. Without a record of the round before, the
correction is 0; the server, who is told of which round the record was, then has all clients begin afresh.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from methods.method import Method, Plan, Records, Replies, ServerHalf, as_array, as_tensor
from methods.penalised import PHASES, CompositeSettings, PenalisedTask, between, local, penalised, prox_at
from methods.samples import Batch
from payloads.record import FloatArray, IntArray, Payload, array


@dataclass(frozen=True, eq=False)
class CorrectionState(Payload):
    """What a client keeps of its newest round r; that round counts once a later round's model has come down."""

    server_round: IntArray = array(1, kind="int")
    # c_i^r, for a round that is made again
    correction: FloatArray = array("d")
    # P(x-bar^r) and the mean of the round's gradients, which make c_i^{r+1}
    start: FloatArray = array("d")
    gradient: FloatArray = array("d")


@dataclass(frozen=True)
class Carry:
    """z-hat (d,), z (d,), the step t = 0, 1, ..., c_i as a tensor (d,), c_i and P(x-bar) as arrays (d,), and eta."""

    pre: Tensor
    z: Tensor
    t: int
    correction: Tensor
    own: FloatArray
    start: FloatArray
    eta: float


def correct(kept: CorrectionState, point: FloatArray, step: float) -> FloatArray:
    """(d,) line 19: c_i^{r+1} = (P(x-bar^r) - x-bar^{r+1}) / eta-tilde - the mean of the client's gradients in round r.

    Args:
        kept: of round r.
        point: (d,) x-bar^{r+1}.
        step: eta-tilde of round r.
    """
    made: FloatArray = (kept.start - point) / step - kept.gradient
    return made


def correction_of(point: FloatArray, memory: CorrectionState | None, task: PenalisedTask) -> FloatArray:
    """(d,) c_i of a round: line 3's zeros in the first, and where the client knows nothing of the round before."""
    kept = None if memory is None else memory.check({"d": len(point)}, finite=False)
    made = 0 if kept is None else int(kept.server_round[0])
    if kept is not None and made == task.server_round:
        return kept.correction
    if kept is None or made != task.server_round - 1:
        return np.zeros_like(point)
    return correct(kept, point, between(task.training, made))


def start(x: Tensor, down: None, memory: CorrectionState | None, task: PenalisedTask) -> Carry:
    """Line 18 and 19, the end of the round before, then line 6: z-hat = z = P_{eta-tilde g}(x-bar)."""
    own = correction_of(as_array(x), memory, task)
    z = task.f.prox(x, between(task.training, task.server_round - 1), out=x)
    eta = local(task.training, task.server_round)
    return Carry(z.clone(), z, 0, as_tensor(own, x), own, as_array(z).copy(), eta)


def step(carry: Carry, batch: Batch, eta: float, task: PenalisedTask) -> Carry:
    """Lines 8 to 11: z-hat <- z-hat - eta (grad f_i(z) + c_i), then z <- P_{(t+1) eta g}(z-hat)."""
    carry.pre.sub_(task.f.gradient(carry.z, batch).add_(carry.correction), alpha=carry.eta)
    t = carry.t + 1
    if t < task.training.local_steps:  # nothing is computed at the last z
        task.f.prox(carry.pre, t * carry.eta, out=carry.z)
    return replace(carry, t=t)


def finish(carry: Carry, task: PenalisedTask) -> tuple[Tensor, None, CorrectionState]:
    """Line 13: z-hat is sent. Of the round's gradients the mean is kept, which is what z-hat has moved by."""
    gradient = (carry.start - as_array(carry.pre)) / (carry.eta * task.training.local_steps) - carry.own
    number = np.array([task.server_round])
    return (
        carry.pre,
        None,
        CorrectionState(server_round=number, correction=carry.own, start=carry.start, gradient=gradient),
    )


def update(
    x: FloatArray, state: None, replies: Replies[Payload], plan: Plan[CompositeSettings]
) -> tuple[FloatArray, None]:
    """Line 15: x-bar <- P(x-bar) + eta_g (mean of z-hat - P(x-bar))."""
    begun = prox_at(x, between(plan.training, plan.server_round - 1), plan)
    return replies.moved(begun, plan.training.server_learning_rate), None


def output(x: FloatArray, plan: Plan[CompositeSettings]) -> FloatArray:
    """(d,) line 21: P(x-bar), the model that x-bar of a round stands for."""
    return prox_at(x, between(plan.training, plan.server_round), plan)


COMPOSITE = Method(
    penalised(start, step, finish),
    ServerHalf(update=update, output=output),
    Records(memory=CorrectionState),
    settings=CompositeSettings,
    phases=PHASES,
)
