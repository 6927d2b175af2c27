"""LocalSCGDAM with several inner levels, after Zhang, Payani, Lee, Souvenir, Gao, "A Federated Stochastic Multi-level
Compositional Minimax Algorithm for Deep AUC Maximization" (ICML 2024).

The objective is f(g(... g(x)), y): the AUC of a model that is several steps of descent on the cross-entropy away.

| paper | here |
|---|---|
| the number of inner levels | ``levels`` of the settings |
| the estimates of the inner functions before the last | ``levels`` of the records |
| the estimate of the last inner function | ``inner``, as in `methods.scgdam` |

Each estimate follows g at the estimate before it, and the gradient is pulled back through all levels, the last level
first. We derived the update from Algorithm 1 of LocalSCGDAM, to which one level is equal: all levels have the same
moving average and share a batch. The paper corrects its averages for the movement of the point; here they are plain.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from methods import scgdam
from methods.method import Checks, ClientHalf, Records, as_array, as_tensor
from methods.minimax import check_saddle, weigh
from methods.scgdam import (
    LOCAL_SCGDAM,
    Batch,
    CompositionalState,
    CompositionalUp,
    SCGDAMDown,
    SCGDAMSettings,
    SCGDAMTask,
    compose,
    draw_both,
    draw_next,
    make_down,
    take_compositional,
)
from methods.server import Plan, Replies
from payloads.record import FloatArray, PayloadError, array


@dataclass(frozen=True, eq=False)
class MultiLevelDown(SCGDAMDown):
    """The record sent to the clients.

    The estimates before h, each as long as x, one after another. They are absent in round 1 and with a single level.
    """

    levels: FloatArray | None = array("l", optional=True)


@dataclass(frozen=True, eq=False)
class MultiLevelUp(CompositionalUp):
    """A client's reply."""

    levels: FloatArray | None = array("l", optional=True, combined="mean")


@dataclass(frozen=True, eq=False)
class MultiLevelState(CompositionalState):
    """The server's state: the means of the clients' records."""

    levels: FloatArray | None = array("l", optional=True)


@dataclass(frozen=True)
class Carry(scgdam.Carry):
    """A client's state between two steps, with the estimates before h. Each is followed by y."""

    levels: Float[Tensor, "*stack l d"]


def start(x: Float[Tensor, "*stack d"], down: MultiLevelDown, memory: None, task: SCGDAMTask) -> Carry:
    """Receive the estimates and (u, v). In round 1, compute them on batches 0."""
    f = weigh(task, down)
    h = f.load_inner(down.inner, down.inner_buffers).clone()
    levels = x.unsqueeze(-2).repeat_interleave(task.settings.levels - 1, -2)
    if down.momentum is None:
        first = draw_both(task, task.iterations[0])
        momentum = compose(f, x, h, first, 1.0, task.settings, levels.unbind(-2)).clone()
        return Carry(x, h, momentum, f, levels)
    if down.levels is not None:
        levels[..., : f.primal_dim] = as_tensor(down.levels, x).view(-1, f.primal_dim)
    return Carry(x, h, as_tensor(down.momentum, x).expand_as(x).contiguous(), f, levels)


def step(carry: Carry, batch: Batch, drop: float, task: SCGDAMTask) -> Carry:
    """One step of x and y, then of the estimates, then of u and v."""
    scgdam.step(carry, batch, drop, task, carry.levels.unbind(-2))
    return carry


def finish(carry: Carry, task: SCGDAMTask) -> tuple[Float[Tensor, "*stack d"], MultiLevelUp, None]:
    x, up, _ = scgdam.finish(carry, task)
    levels = as_array(carry.levels[..., : carry.f.primal_dim].flatten(-2)) if carry.levels.shape[-2] else None
    return x, MultiLevelUp(**up.arrays(), levels=levels), None


def update(
    x: Float[np.ndarray, "d"], state: MultiLevelState | None, replies: Replies[Any], plan: Plan[SCGDAMSettings]
) -> tuple[Float[np.ndarray, "d"], MultiLevelState]:
    """Average all records."""
    point, means = scgdam.update(x, state, replies, plan)
    levels = None if plan.settings.levels == 1 else replies.mean("levels")
    return point, MultiLevelState(**means.arrays(), levels=levels)


def bound_lengths(client: int, model: Sequence[FloatArray], plan: Plan[SCGDAMSettings]) -> dict[str, int]:
    """Bound the estimates, in addition to `methods.scgdam.bound_lengths`; a `Checks.limits`."""
    lengths = scgdam.bound_lengths(client, model, plan)
    return {**lengths, "l": (plan.settings.levels - 1) * lengths["p"]}


def check_lengths(record: MultiLevelUp, model: Sequence[FloatArray], plan: Plan[SCGDAMSettings]) -> None:
    """Check the length of the estimates; a `Checks.record`."""
    scgdam.check_lengths(record, model, plan)
    got, expected = 0 if record.levels is None else len(record.levels), bound_lengths(0, model, plan)["l"]
    if got != expected:
        raise PayloadError(f"MultiLevelUp.levels: got {got} values, expected {expected}")


SCGDAM_MULTI = replace(
    LOCAL_SCGDAM,
    client=ClientHalf(take_compositional, draw_next, start, step, finish),
    server=replace(LOCAL_SCGDAM.server, tell=partial(make_down, kind=MultiLevelDown), update=update),
    records=Records(down=MultiLevelDown, up=MultiLevelUp, state=MultiLevelState),
    checks=Checks(sites=check_saddle, limits=bound_lengths, record=check_lengths),
    sends="the inner estimates, momentum",
)
