"""Group distributionally robust optimisation: the loss of the worst sites.

The problem is min_w max_p sum_i q_i p_i F_i(w), over weights p_i >= 0 with sum_i q_i p_i = 1 (q_i: the site's share):

| method | limits and terms of p | for a small T |
|---|---|---|
| FGDRO-KL | minus T sum_i q_i p_i log p_i, so p_i = exp((F_i - s) / T) | the worst site |
| FGDRO-CVaR | p_i <= 1/share, minus T/2 sum_i q_i p_i^2, so p_i = (F_i - s) / T in [0, 1/share] | the worst `share` |

The problems, and the clients' estimates u_i of F_i, are of Guo, Yang, "Communication-Efficient Federated Group
Distributionally Robust Optimization" (NeurIPS 2024). We derived the rest:

- The paper's server averages the clients' normalisers. Here it solves sum_i q_i p_i = 1 for its dual s, from the u_i
  of all sites.
- A site's p_i changes between rounds only, so the weights add up to 1 in every step.
- The paper's CVaR has no quadratic term, so a site has the weight 0 or 1/share. At the best s of four equal sites and a
  share of .2 no site would have a gradient.

| notation | here |
|---|---|
| u_i; the factor of its moving average | ``level`` of `SiteLevel`; ``averaging`` |
| s; the largest p_i | ``dual``, ``largest`` of `FGDRODual` |
| T, share | ``temperature``, ``share`` |
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy.special import logsumexp
from torch import Tensor

from methods.method import ClientHalf, Method, Records, Task, as_array, as_tensor
from methods.samples import Batch, SampleObjective, sample_batches, sample_objective
from methods.server import Plan, Replies, ServerHalf
from payloads.record import BoolArray, FloatArray, Payload, array
from payloads.settings import Settings, setting
from problems.objectives.classification import CROSS_ENTROPY
from problems.objectives.number_losses import NUMBER_LOSSES


class FGDROSettings(Settings):
    """Hyper-parameters of FGDRO (table ``fgdro``)."""

    temperature: float = setting("The temperature T, in units of the loss. Larger: closer to equal weights.", 0.1, gt=0)
    share: float = setting("With fgdro-cvar the share of the sites, by weight, that counts.", 0.3, gt=0, le=1)
    averaging: float = setting("The weight of a new batch in a site's mean loss.", 0.1, gt=0, le=1)


FGDROTask = Task[FGDROSettings, SampleObjective]


@dataclass(frozen=True, eq=False)
class FGDRODual(Payload):
    """s and the largest p_i, sent to the clients. Absent in round 1, in which all sites have the weight 1."""

    dual: FloatArray = array(1)
    largest: FloatArray = array(1)


@dataclass(frozen=True, eq=False)
class SiteLevel(Payload):
    """u_i: a client's reply, and its memory."""

    level: FloatArray = array(1)


@dataclass(frozen=True, eq=False)
class SiteLevels(Payload):
    """The server's state: the newest u_i of every site, and whether the site has answered yet."""

    levels: FloatArray = array("n")
    known: BoolArray = array("n", kind="bool")


@dataclass(frozen=True)
class Carry:
    """A client's state between two steps: w; u_i, nan before the client's first step; p_i, fixed within a round."""

    x: Float[Tensor, "*stack d"]
    level: Float[Tensor, "*stack"]
    weight: Float[Tensor, "*stack"]


def weigh_kl(levels: Float[Tensor, "*n"], dual: float, settings: FGDROSettings) -> Float[Tensor, "*n"]:
    """Return p_i = exp((u_i - s) / T)."""
    return ((levels - dual) / settings.temperature).exp()


def weigh_cvar(levels: Float[Tensor, "*n"], dual: float, settings: FGDROSettings) -> Float[Tensor, "*n"]:
    """Return p_i = (u_i - s) / T, clipped to [0, 1/share]."""
    return ((levels - dual) / settings.temperature).clamp(0.0, 1 / settings.share)


def solve_kl(levels: Float64[np.ndarray, "n"], shares: Float64[np.ndarray, "n"], settings: FGDROSettings) -> float:
    """Return s = T log sum_i q_i exp(u_i / T)."""
    return float(settings.temperature * logsumexp(levels / settings.temperature, b=shares))


def solve_cvar(levels: Float64[np.ndarray, "n"], shares: Float64[np.ndarray, "n"], settings: FGDROSettings) -> float:
    """Return s with sum_i q_i p_i = 1. The sum falls in s, and is linear between points at which a p_i is clipped."""

    def add(dual: float) -> float:
        return float(shares @ weigh_cvar(torch.from_numpy(levels), dual, settings).numpy())

    corners = np.unique(np.concatenate([levels, levels - settings.temperature / settings.share]))
    # the sum is 1/share at the first corner and 0 at the last
    last = max(bisect_left(corners, -1.0, key=lambda dual: -add(dual)), 1)
    ends = corners[last - 1 : last + 1]
    return float(np.interp(-1.0, [-add(dual) for dual in ends], ends))


def start(
    x: Float[Tensor, "*stack d"],
    down: FGDRODual | None,
    memory: SiteLevel | None,
    task: FGDROTask,
    weigh: Callable[..., Float[Tensor, "*stack"]],
) -> Carry:
    """Compute p_i. It is 1 in round 1, and in a client's first round, in which no u_i exists."""
    level = x.new_full(x.shape[:-1], torch.nan) if memory is None else as_tensor(memory.level[..., 0], x)
    if memory is None or down is None:
        return Carry(x, level, torch.ones_like(level))
    # the server may have lost this client's newest u_i, so p_i could be larger than all p_i that the server knows
    return Carry(x, level, weigh(level, float(down.dual[0]), task.settings).clamp(max=float(down.largest[0])))


def step(carry: Carry, batch: Batch, eta: float, task: FGDROTask) -> Carry:
    """u_i <- (1 - averaging) u_i + averaging (the batch's loss), and w <- w - eta p_i (the batch's gradient)."""
    loss, gradient = task.f.measure(carry.x, batch)
    carry.x.sub_(gradient.mul_(carry.weight[..., None]), alpha=eta)
    level = torch.where(carry.level.isnan(), loss, carry.level.lerp(loss, task.settings.averaging))
    return replace(carry, level=level)


def finish(carry: Carry, task: FGDROTask) -> tuple[Float[Tensor, "*stack d"], SiteLevel, SiteLevel]:
    """Send u_i, and remember it."""
    level = SiteLevel(level=as_array(carry.level.unsqueeze(-1)))
    return carry.x, level, level


def init(x: Float[np.ndarray, "d"], plan: Plan[FGDROSettings]) -> SiteLevels:
    return SiteLevels(levels=np.zeros(plan.num_sites), known=np.zeros(plan.num_sites, bool))


def find_known(
    state: SiteLevels, plan: Plan[FGDROSettings]
) -> tuple[Float64[np.ndarray, "n"], Float64[np.ndarray, "n"]]:
    """Return the known u_i, and the shares q_i of these sites."""
    weights = plan.class_counts.sum(axis=1) if plan.training.by_examples else np.ones(plan.num_sites)
    return state.levels[state.known], weights[state.known] / weights[state.known].sum()


def make_dual(
    x: Float[np.ndarray, "d"],
    state: SiteLevels,
    plan: Plan[FGDROSettings],
    weigh: Callable[..., Tensor],
    solve: Callable[..., float],
) -> FGDRODual | None:
    levels, shares = find_known(state, plan)
    if not len(levels):
        return None
    dual = solve(levels, shares, plan.settings)
    largest = float(weigh(torch.tensor(levels.max()), dual, plan.settings))
    return FGDRODual(dual=np.array([dual], x.dtype), largest=np.array([largest], x.dtype))


def update(
    x: Float[np.ndarray, "d"], state: SiteLevels, replies: Replies[SiteLevel], plan: Plan[FGDROSettings]
) -> tuple[Float[np.ndarray, "d"], SiteLevels]:
    """Average the points, and replace the u_i of the sites that answered."""
    levels, known, clients = state.levels.copy(), state.known.copy(), list(replies.clients)
    levels[clients], known[clients] = [up.level[0] for up in replies.ups], True
    return replies.mean_point(), SiteLevels(levels=levels, known=known)


def report(state: SiteLevels, plan: Plan[FGDROSettings]) -> dict[str, float]:
    """Report the largest and the mean u_i."""
    levels, shares = find_known(state, plan)
    return {"worst_site_loss": float(levels.max()), "mean_site_loss": float(levels @ shares)} if len(levels) else {}


def _method(weigh: Callable[..., Tensor], solve: Callable[..., float]) -> Method:
    return Method(
        ClientHalf(sample_objective, sample_batches, partial(start, weigh=weigh), step, finish),
        ServerHalf(init=init, tell=partial(make_dual, weigh=weigh, solve=solve), update=update, report=report),
        Records(down=FGDRODual, up=SiteLevel, memory=SiteLevel, state=SiteLevels),
        settings=FGDROSettings,
        table="fgdro",
        losses=(CROSS_ENTROPY, *NUMBER_LOSSES),
        offsets=True,
        adjusts=True,
        stacked=True,
        sends="a mean loss of each site; the server's dual and largest weight",
    )


FGDRO_KL = _method(weigh_kl, solve_kl)
FGDRO_CVAR = _method(weigh_cvar, solve_cvar)
