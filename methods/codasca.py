"""CODASCA (Yuan, Guo, Xu, Ying, Yang, "Federated Deep AUC Maximization for Heterogeneous Data with a Constant
Communication Complexity", ICML 2021): CoDA with the control variates of SCAFFOLD.

| paper | here |
|---|---|
| (v, alpha), v_0, stages, 1 / gamma | as in `methods.coda` |
| c_k of client k; c | ``control`` of `ControlVariate`; of `StageState` |
| the change of c_k | `ControlChange` |
| eta_g | ``server-learning-rate`` |

The new c_k is the mean of the round's uncorrected stochastic gradients (Option II of SCAFFOLD, as published).
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from methods import coda
from methods.coda import CodaDown, CodaTask
from methods.method import Records
from methods.minimax import count_population
from methods.scaffold import ControlChange, ControlVariate, new_control, recall, record_change
from methods.server import Exchanges, Train
from methods.stages import CodaPlan, StageState, follow_stage, tell_reference
from payloads.record import FloatArray, array
from problems.sampling import Indices


@dataclass(frozen=True, eq=False)
class CodascaDown(CodaDown):
    """The record sent to the clients: CoDA's fields, and c unless it is zero."""

    control: FloatArray | None = array("d", optional=True)


@dataclass(frozen=True, kw_only=True)
class Carry(coda.Carry):
    """CoDA's carry, and the old c_k, the correction c - c_k, and the sum of the gradients so far."""

    own: FloatArray
    correction: Float[Tensor, "*stack d"]
    total: Float[Tensor, "*stack d"]


def start(x: Float[Tensor, "*stack d"], down: CodascaDown, memory: ControlVariate | None, task: CodaTask) -> Carry:
    own, correction = recall(memory, down.control, x)
    plain = vars(coda.start(x, down, None, task))
    return Carry(**plain, own=own, correction=correction, total=torch.zeros_like(x))


def step(carry: Carry, rows: Indices, eta: float, task: CodaTask) -> Carry:
    """v <- v - eta (g_v - c_k + c) - eta/gamma (v - v_0), alpha <- alpha + eta (g_alpha - c_k + c)."""
    gradient = coda.compute_gradient(carry, rows, task)
    carry.total.add_(gradient)
    if pull := eta * task.settings.proximal:
        carry.x[..., : carry.f.primal_dim].lerp_(carry.reference, pull)
    carry.x.addcmul_(carry.signs, gradient.add_(carry.correction), value=eta)
    return carry


def finish(carry: Carry, task: CodaTask) -> tuple[Float[Tensor, "*stack d"], ControlChange, ControlVariate]:
    """c_k <- the mean of the round's gradients; its change is sent."""
    return carry.x, *record_change(carry.own, carry.total / task.training.local_steps)


def run_round(
    x: Float[np.ndarray, "d"], state: StageState, plan: CodaPlan
) -> Exchanges[tuple[Float[np.ndarray, "d"], StageState]]:
    """Restart alpha in a stage's first round, then z <- z + eta_g mean (z_i - z) and a new c; a `ServerHalf.round`."""
    x = yield from coda.restart_dual(x, plan)
    control = None if state.control is None else state.control.astype(x.dtype)
    reference = tell_reference(x, state, plan)
    replies = yield Train(CodascaDown(population=count_population(plan), reference=reference, control=control), x)
    point = replies.move(x, plan)
    return point, replace(follow_stage(state, point, plan), control=new_control(state.control, replies))


CODASCA = replace(
    coda.CODA,
    client=replace(coda.CODA.client, start=start, step=step, finish=finish),
    server=replace(coda.CODA.server, round=run_round),
    records=Records(down=CodascaDown, up=ControlChange, memory=ControlVariate, state=StageState),
    sends="control variates; down: the stage's reference point; up, between stages: class sums of scores",
    has_adam=False,
    joint_states=True,
    unread=(),
)
