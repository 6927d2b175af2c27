"""FedCanon: a loss plus a penalty, with plain SGD steps at the clients and one proximal step a round, at the server.

The problem min f + g with a nonconvex f, the single proximal step, and the control variables of the local steps are of
Zhou, Zhong, Shi, Wen, Yu, "FedCanon: Non-Convex Composite Federated Learning with Efficient Proximal Operation on
Heterogeneous Data" (arXiv 2504.11903). We derived the formulas from SCAFFOLD, so they may differ from the paper's
Algorithm 1:

- Local steps follow grad f_i(y) - c_i + c + u. The server's u is a subgradient of g at x, from its proximal step. At
  the minimiser c + u = 0, so no client moves, and the minimiser is a fixed point for any number of local steps.
- Clients send points only. The server computes the mean change of the c_i from the mean point.
- If some clients answer, c and the step are SCAFFOLD's. Without a penalty u = 0, and all points are SCAFFOLD's.

| notation | here |
|---|---|
| x, y_i, K, eta, eta_g, c_i, c | as in `methods.scaffold` |
| g, its prox P, eta-tilde = eta eta_g K | as in `methods.penalised` |
| u | ``subgradient`` of `CanonState` |
| S, N | the clients that answered; the number of all clients |
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from methods import scaffold
from methods.method import Records, as_array
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
from methods.scaffold import Carry, ControlVariate
from methods.server import Replies
from payloads.record import FloatArray, Payload, array
from problems.models.vectors import exact_mean


@dataclass(frozen=True, eq=False)
class CanonState(Payload):
    """The server's state after a round: c and u."""

    control: FloatArray = array("d")
    subgradient: FloatArray = array("d")


def finish(carry: Carry, task: PenalisedTask) -> tuple[Float[Tensor, "*stack d"], None, ControlVariate]:
    """Send y_i. The new c_i is the mean of the round's gradients."""
    return carry.x, None, ControlVariate(control=as_array(carry.control))


def add_controls(x: Float[np.ndarray, "d"], state: CanonState | None, plan: PenalisedPlan) -> ControlVariate | None:
    """Send c + u, in the model's number type. Returns None while both are zero."""
    return None if state is None else ControlVariate(control=(state.control + state.subgradient).astype(x.dtype))


def update(
    x: Float[np.ndarray, "d"], state: CanonState | None, replies: Replies[Payload], plan: PenalisedPlan
) -> tuple[Float[np.ndarray, "d"], CanonState | None]:
    """Take a proximal step x <- P_{eta-tilde g}(v), v = x - eta-tilde (c + the mean change of the c_i).

    The local steps add up to: mean over S of y_i = x - eta K (c + u + the mean change). Then c <- c + |S|/N (the mean
    change), with the weights of S in the mean over all N clients, and u <- (v - x) / eta-tilde.

    Returns:
        x, and the state. None, which stands for zeros, if a client has lost its c_i: c and the c_i belong together.
    """
    training, sent = plan.training, add_controls(x, state, plan)
    length, step = local(training, plan.server_round) * training.local_steps, between(training, plan.server_round)
    change = (x - exact_mean(replies.points, replies.weights)) / length
    control: FloatArray = np.zeros(len(x))
    if state is not None and sent is not None:
        change, control = change - sent.control, state.control
    moved = x - step * (control + change)
    point = prox_at(moved.astype(x.dtype), step, plan)
    if replies.states_lost:
        return point, None
    share = (len(replies.clients) if replies.shares is None else replies.shares.sum()) / replies.num_sites
    return point, CanonState(control=control + share * change, subgradient=(moved - point) / step)


FEDCANON = make_method(
    make_client(scaffold.start, scaffold.step, finish),
    make_server(tell=add_controls, update=update),
    Records(down=ControlVariate, memory=ControlVariate, state=CanonState),
    sends="the sum of the control variate and a subgradient, down only",
    # c is the mean of all c_i; docs/architecture.md explains the effect of a lost c_i
    joint_states=True,
    objection=(
        "fedcanon's server computes the control variate from the clients' points, and points that are clipped or "
        "noised in transit make it wrong in all further rounds; fedmid, fedda and fast-fedda have no control variate"
    ),
)
