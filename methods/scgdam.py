"""LocalSCGDAM (Zhang, Zhang, Yang, Souvenir, Gao, "Federated Compositional Deep AUC Maximization", NeurIPS 2023,
Algorithm 1).

| paper | here |
|---|---|
| x = (w, w1, w2) and y = w3, one flat point | the message's model |
| h, the estimate of g(x) | ``inner``, as long as x |
| (u, v), one vector | ``momentum`` |
| xi, zeta | `Batch` |
| alpha | the same name: a new g(x; xi) has the weight alpha eta in h |
| rho | the same name: g(x) = (w - rho grad CE(w), w1, w2), with CE the mean cross-entropy |

w are the network's weights; w1, w2 and w3 are the scalars of the AUC loss f. The client's objective is f(g(x), y). The
other symbols, and the role of the learning rate, are the same as in `methods.sgdam`. There are two networks, at w and
at h. The network at h has its own batch-norm statistics, ``inner_buffers``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from methods.method import Checks, ClientHalf, Records, Task, as_array, as_tensor
from methods.minimax import MinimaxDown, check_saddle, count_population, make_method, weigh
from methods.samples import make_sampler
from methods.server import Plan, Replies, ServerHalf
from methods.sgdam import SGDAMSettings, WeightFactor
from payloads.record import FloatArray, Payload, PayloadError, array
from payloads.settings import setting
from problems.minimax import COMPOSITIONAL_AUC, CompositionalOracle, Oracle
from problems.randomness import Purpose
from problems.sampling import Indices

# the suffix of the metrics of the network at h
INNER = "inner"


class SCGDAMSettings(SGDAMSettings):
    """Hyper-parameters of LocalSCGDAM (table ``scgdam``); the defaults are the paper's Table 2, which has no rho."""

    alpha: WeightFactor = setting(
        "The weight of a new inner point in the estimate h, in units of eta.", 3.0, "a number > 0 with eta * alpha <= 1"
    )
    rho: float = setting("The step of the inner descent on the cross-entropy. 0: no descent.", 0.01, ge=0)
    hessian: Literal["exact", "identity"] = setting(
        "The inner step's derivative: with Hessian-vector products, or the identity.", "exact"
    )
    levels: int = setting("With scgdam-multi: the number of inner steps.", 2, ge=1, le=10)
    independent_batches: bool = setting("Whether the inner and the outer function take separate batches.", False)
    headline: Literal["outer", "inner"] = setting(
        "The model in the log and the curves: w (outer) or the estimate h (inner).", "outer"
    )


SCGDAMTask = Task[SCGDAMSettings, CompositionalOracle]


@dataclass(frozen=True, eq=False)
class SCGDAMDown(MinimaxDown):
    """The record sent to the clients. In round 1 it has only the population."""

    inner: FloatArray | None = array("p", optional=True)
    momentum: FloatArray | None = array("d", optional=True)
    # the statistics at h, if the network has batch norm
    inner_buffers: FloatArray | None = array("b", optional=True)


@dataclass(frozen=True, eq=False)
class CompositionalUp(Payload):
    """A client's reply: h, (u, v) as one vector, and the batch-norm statistics at h."""

    inner: FloatArray = array("p", combined="mean")
    momentum: FloatArray = array("d", combined="mean")
    inner_buffers: FloatArray | None = array("b", optional=True, combined="mean")


@dataclass(frozen=True, eq=False)
class CompositionalState(Payload):
    """The server's state: the means of the clients' records. ``inner`` is (h, y), the second network's flat point."""

    inner: FloatArray = array("d")
    momentum: FloatArray = array("d")
    inner_buffers: FloatArray | None = array("b", optional=True)


class Batch(NamedTuple):
    """The rows of a batch xi of g, and the rows of a batch zeta of f."""

    xi: Indices
    zeta: Indices


@dataclass(frozen=True)
class Carry:
    """A client's state between two steps.

    Attributes:
        x: The point (x, y) of the first network.
        h: The point (h, y) of the second network.
        momentum: The vector (u, v).
        f: The oracle of f_i.
    """

    x: Float[Tensor, "*stack d"]
    h: Float[Tensor, "*stack d"]
    momentum: Float[Tensor, "*stack d"]
    f: CompositionalOracle


def take_compositional(model: Oracle, *unused: object) -> CompositionalOracle:
    """Return the client's oracle of f_i and g_i, not yet weighted; a `ClientHalf.objective`.

    Args:
        model: The oracle, which has the site's data and both networks.
        unused: The further arguments of a `ClientHalf.objective`.

    Raises:
        TypeError: The oracle's problem has no inner function.
    """
    if not isinstance(model, CompositionalOracle):
        raise TypeError(f"LocalSCGDAM needs a CompositionalOracle, got {type(model).__name__}")
    return model


def draw_both(task: SCGDAMTask, number: int) -> Batch:
    """Draw the batches of an iteration.

    Args:
        number: The iteration's number in the whole run, counted from 0.

    Returns:
        A batch that g and f share or, with ``independent-batches``, a separate batch for each.
    """
    purpose = Purpose.INDEPENDENT_SAMPLES if task.settings.independent_batches else Purpose.SAMPLES
    return Batch(make_sampler(task).batch(number), make_sampler(task, purpose).batch(number))


def draw_next(task: SCGDAMTask, down: object) -> Iterator[tuple[float, Batch]]:
    """Draw a round's batches; a `ClientHalf.batches`.

    Args:
        down: The record sent with the model; without effect.

    Returns:
        For each iteration t the learning rate relative to its initial value, and the batches t + 1. Batches 0 make the
        first h and momentum.
    """
    for t in task.iterations:
        yield task.eta(t) / task.training.learning_rate, draw_both(task, t + 1)


def compose(
    f: CompositionalOracle,
    z: Float[Tensor, "*stack d"],
    h: Float[Tensor, "*stack d"],
    batch: Batch,
    weight: float,
    settings: SCGDAMSettings,
    levels: Sequence[Float[Tensor, "*stack d"]] = (),
) -> Float[Tensor, "*stack d"]:
    """h <- (1 - weight) h + weight g(x; xi); return the gradients at the new h.

    Args:
        f: f_i and g_i.
        z: The point (x, y).
        h: The point (h, y) of the second network, changed in place.
        weight: The weight of the new inner point, in (0, 1]; 1 discards the old h.
        settings: The settings of g: its step rho, and its exact Jacobian or the identity.
        levels: The estimates between x and h, changed in place; see `methods.scgdam_multi`. Each estimate, and h, then
            moves to g at the estimate before it.

    Returns:
        grad g(x; xi)^T grad_h f(h, y; zeta) and grad_y f(h, y; zeta) as one vector. Valid until the next call.
    """
    pulls, point, statistics = [], z, f.buffers
    for estimate in (*levels, h):
        inner, pull = f.descend(point, batch.xi, settings.rho, exact=settings.hessian == "exact")
        if levels and point is z:
            statistics = f.buffers.clone()  # the first network keeps its batch-norm statistics at x
        estimate.lerp_(inner, weight)
        estimate[..., f.primal_dim :] = z[..., f.primal_dim :]  # y has no estimate
        pulls.append(pull)
        point = estimate
    if levels:
        f.buffers.copy_(statistics)
    gradient = f.outer_gradient(h, batch.zeta)
    for pull in reversed(pulls):
        gradient = pull(gradient)
    return gradient


def start(x: Float[Tensor, "*stack d"], down: SCGDAMDown, memory: None, task: SCGDAMTask) -> Carry:
    """Receive h and (u, v). In round 1, compute h_0 = g(x; xi) and (u_0, v_0), the gradients at h_0, on batches 0."""
    f = weigh(task, down)
    h = f.load_inner(down.inner, down.inner_buffers).clone()
    if down.momentum is not None:
        return Carry(x, h, as_tensor(down.momentum, x).expand_as(x).contiguous(), f)
    gradient = compose(f, x, h, draw_both(task, task.iterations[0]), 1.0, task.settings)
    return Carry(x, h, gradient.clone(), f)


def step(
    carry: Carry, batch: Batch, drop: float, task: SCGDAMTask, levels: Sequence[Float[Tensor, "*stack d"]] = ()
) -> Carry:
    """Lines 2 to 4 of Algorithm 1: one step of x and y, then of h, then of u and v."""
    s, p = task.settings, carry.f.primal_dim
    x, y, u, v = carry.x[..., :p], carry.x[..., p:], carry.momentum[..., :p], carry.momentum[..., p:]
    # line 2: x <- x - gamma_x eta u, y <- y + gamma_y eta v
    x.sub_(u, alpha=s.gamma_x * s.eta * drop)
    y.add_(v, alpha=s.gamma_y * s.eta * drop)
    # line 3: h <- (1 - alpha eta) h + alpha eta g(x; xi)
    gradient = compose(carry.f, carry.x, carry.h, batch, s.alpha * s.eta, s, levels)
    # line 4: u <- (1 - beta_x eta) u + beta_x eta grad g^T grad_h f, v <- (1 - beta_y eta) v + beta_y eta grad_y f
    u.lerp_(gradient[..., :p], s.beta_x * s.eta)
    v.lerp_(gradient[..., p:], s.beta_y * s.eta)
    return carry


def finish(carry: Carry, task: SCGDAMTask) -> tuple[Float[Tensor, "*stack d"], CompositionalUp, None]:
    inner, buffers = as_array(carry.h)[..., : carry.f.primal_dim], carry.f.inner_buffers()
    return carry.x, CompositionalUp(inner=inner, momentum=as_array(carry.momentum), inner_buffers=buffers), None


def count_duals(plan: Plan[SCGDAMSettings]) -> int:
    """Return the length of y: the number of findings, or 1 for a single label."""
    return 1 if plan.finding_counts is None else plan.finding_counts.shape[1]


def make_down(
    x: Float[np.ndarray, "d"],
    state: CompositionalState | None,
    plan: Plan[SCGDAMSettings],
    kind: type[SCGDAMDown] = SCGDAMDown,
) -> SCGDAMDown:
    """Make the record sent to the clients, of the class `kind`."""
    means = {} if state is None else {**state.arrays(), "inner": state.inner[: -count_duals(plan)]}
    return kind(population=count_population(plan), **means)


def update(
    x: Float[np.ndarray, "d"],
    state: CompositionalState | None,
    replies: Replies[CompositionalUp],
    plan: Plan[SCGDAMSettings],
) -> tuple[Float[np.ndarray, "d"], CompositionalState]:
    """Line 6: average x, y, h, u and v, and the statistics at h."""
    point = replies.mean_point()
    return point, CompositionalState(
        inner=np.append(replies.mean("inner"), point[-count_duals(plan) :]),
        momentum=replies.mean("momentum"),
        inner_buffers=None if replies.ups[0].inner_buffers is None else replies.mean("inner_buffers"),
    )


def view_inner(state: CompositionalState | None) -> dict[str, list[FloatArray]]:
    """Show the network at h in addition to the network at w; a `ServerHalf.views`."""
    if state is None:
        return {}
    return {INNER: [state.inner] if state.inner_buffers is None else [state.inner, state.inner_buffers]}


def bound_lengths(client: int, model: Sequence[FloatArray], plan: Plan[SCGDAMSettings]) -> dict[str, int]:
    """Bound h by the length of x, and the batch-norm statistics at h by their number at w; a `Checks.limits`."""
    point, *buffers = model
    return {"p": len(point) - count_duals(plan), "b": len(buffers[0]) if buffers else 0}


def check_lengths(record: CompositionalUp, model: Sequence[FloatArray], plan: Plan[SCGDAMSettings]) -> None:
    """Check that h is as long as x, with as many statistics; a `Checks.record`."""
    lengths = bound_lengths(0, model, plan)
    expected = {"inner": lengths["p"], "inner_buffers": lengths["b"] if len(model) > 1 else None}
    for name, length in expected.items():
        value: FloatArray | None = getattr(record, name)
        if (None if value is None else len(value)) != length:
            got = "nothing" if value is None else f"{len(value)} values"
            raise PayloadError(f"CompositionalUp.{name}: got {got}, expected {'none' if length is None else length}")


LOCAL_SCGDAM = make_method(
    ClientHalf(take_compositional, draw_next, start, step, finish),
    ServerHalf(
        tell=make_down,
        update=update,
        views=view_inner,
        headline=lambda settings: INNER if settings.headline == INNER else "",
    ),
    Records(down=SCGDAMDown, up=CompositionalUp, state=CompositionalState),
    SCGDAMSettings,
    checks=Checks(sites=check_saddle, limits=bound_lengths, record=check_lengths),
    findings=True,
    table="scgdam",
    losses=(COMPOSITIONAL_AUC,),
    loss=COMPOSITIONAL_AUC,
    sends="the inner estimate, momentum",
    own_steps=("scgdam.eta",),
    unread=("learning_rate", "server_learning_rate"),
)
