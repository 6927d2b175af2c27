"""FedX (Guo, Jin, Luo, Yang, "FedX: Federated Learning for Compositional Pairwise Risk Optimization", ICML 2023):
Algorithm 1, FedX1, for linear f; Algorithms 2 and 3, FedX2, for any f; the larger buffers of Appendices E and F.

FedX minimises the mean over positives of f(mean over partners of l(score of positive, score of partner)). A client
pairs its own samples, the active half of a pair, with scores that other clients have sent, the lazy half.

| paper | here |
|---|---|
| H_{i,1}, H_{i,2}, U_i, the scores and u of a client's round | ``history`` of the `Carry` |
| z; h_xi; h_zeta, u_zeta | ``active``; ``partners``; ``positives`` of a `PairBatch` |
| z-hat | ``independent`` of a `PairBatch` |
| G_{i,k,1} + G_{i,k,2} | ``slopes`` in `step`, mapped to the weights |
| omega_1i, omega_2i | ``omegas`` of the `Carry` |

`methods.predictions` contains the histories, pools and buffers; `methods.pairwise` defines the other symbols.

Differences from the algorithms as printed. Line 12 swaps the names of the histories; here the partner of an active
positive comes from the pool of partners, and the partner of an active partner from the pool of positives. A sample's
first u is its first observation, since the printed u = 0 would make f' infinite. Predictions of round 0, in which
clients only score samples, come without u; u is then observed on the partners drawn with them. Line 14 records the
active samples unless ``independent-history`` is set.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from methods import pairwise
from methods.fedx_settings import FedXSettings, check_linear, check_pairs, check_pool, count_halves, objective_of
from methods.histograms import SCORING as SCORING
from methods.histograms import HistogramPool, with_histograms
from methods.method import Checks, ClientHalf, Method, Phase, Records, as_array
from methods.pair_batches import ActiveBatch, PairBatch
from methods.pair_findings import checks_with_findings, phase_with_findings, server_with_findings, with_findings
from methods.pairwise import (
    InnerEstimates,
    PairwiseRisk,
    PairwiseTask,
    active_batches,
    average,
    descend,
    differences,
    fill_in,
    observe,
    update_u,
)
from methods.predictions import (
    FedXPool,
    FedXPredictions,
    FedXState,
    Scored,
    bound_history,
    check_predictions,
    collect,
    fill_buffers,
    make_predictions,
    queues,
    weigh_runs,
)
from methods.server import Ask, Exchanges, Plan, ServerHalf, Train
from problems.objectives.hazard import CONCORDANCE
from problems.objectives.pairwise import ALL_PAIRWISE, LINEAR, times
from problems.randomness import Purpose

# the number of the scoring round, the exchange before round 1 in which clients only score samples; see `score`
SCORING_ROUND = 0

INDEPENDENT = Purpose.INDEPENDENT_POSITIVES, Purpose.INDEPENDENT_PARTNERS


# The client half.


@dataclass(frozen=True, kw_only=True)
class Carry(pairwise.Carry):
    """The carry of `methods.pairwise`, and omega_1i and omega_2i, |S_2|, and the round's history of scores."""

    omegas: Float64[Tensor, "*stack 2"]
    num_partners: int
    history: list[Scored]


@torch.no_grad()
def score_others(
    x: Float[Tensor, "*stack d"],
    u: Float64[Tensor, "positives k"] | None,
    sample: ActiveBatch,
    partners: Any,
    task: PairwiseTask,
) -> Scored:
    """Score a sample on which no step trains.

    Args:
        x: w.
        u: The table of u of the site's positives. None: the result has no u.
        sample: The positives and partners to score.
        partners: `Predictions` from the pool, on which u is observed if the table has no value. None without a table.

    Returns:
        The scores. With a table also the sample's u: the stored value, or the value observed now if none is stored.
    """
    a, b, _ = task.f.forward(x, sample)
    known = None if u is None else fill_in(u[sample.u_rows], observe(task, a, partners, sample.events))
    return Scored(a, known, b, sample.labels, sample.events, sample.spans)


def score(x: Float[Tensor, "d"], down: None, task: PairwiseTask) -> FedXPredictions:
    """Lines 3 and 4 of both algorithms: answer the phase `SCORING`, before any step.

    Args:
        x: The initial model.
        down: None, since only the model is sent.
        task: The client's task. The clients score as many batches as a round has local steps, K.

    Returns:
        The predictions of these batches, without u.
    """
    samples = active_batches(task, task.f.positives, task.training.local_steps)
    return make_predictions([score_others(x, None, sample, None, task) for sample in samples], task)


def start(
    x: Float[Tensor, "d"], pool: FedXPool | HistogramPool | None, memory: InnerEstimates | None, task: PairwiseTask
) -> Carry:
    """Prepare a round: lines 7 and 9 of both algorithms, and line 21 of Algorithm 2.

    The client receives the pool and starts an empty history. In FedX2 it also receives G and loads u.

    Args:
        x: w, the model in the message.
        pool: The pool in the message.
        memory: The client's u of earlier rounds, or None.
        task: The client's task.

    Returns:
        The carry of the first step.

    Raises:
        ValueError: The message has no pool.
        PayloadError: The memory belongs to other positives, or to another loss.
    """
    if pool is None:
        raise ValueError(
            f"round {task.server_round}: the server's message has no FedXPool; set the client's inbox to it"
        )
    clients, positives, partners = pool.check({"t": 3}).totals.tolist()
    first, second = len(task.f.positives) / max(positives, 1), len(task.f.partners) / max(partners, 1)
    omegas = torch.tensor([clients * first, clients * second], dtype=torch.float64, device=x.device)
    return Carry(**vars(pairwise.start(x, pool, memory, task)), omegas=omegas, num_partners=partners, history=[])


def draw_batches(task: PairwiseTask, pool: FedXPool) -> Iterator[tuple[float, PairBatch]]:
    """Lines 8, 11 and 12 of both algorithms: draw each step's samples, and its predictions from the shuffled buffers.

    Args:
        pool: The pool in the message.

    Returns:
        The step size and the batch of each iteration.
    """
    own, settings, training = task.f.positives, task.settings, task.training
    # line 8
    positives, partners = fill_buffers(task, pool)
    if task.f.tracked and not len(partners.scores):  # u cannot be observed: leave out positives that need it
        own, positives = own[:0], positives.take(np.flatnonzero(as_array(~positives.u.isnan().any(dim=1))))
    first, second = queues(task, positives, partners)
    unknown = task.f.tracked and bool(positives.u.isnan().any())
    # line 11, and the sample of line 14; the scoring round used the first K batches
    samples = active_batches(task, own, training.local_steps)
    separate = active_batches(task, own, training.local_steps, INDEPENDENT)
    recorded: Iterator[Any] = separate if settings.independent_history else repeat(None)
    for iteration, active, independent in zip(task.iterations, samples, recorded, strict=False):
        # line 12
        lazy = positives.take(first.take(settings.positive_batch_size))
        lazy_partners = partners.take(second.take(settings.negative_batch_size))
        if unknown:
            lazy = lazy._replace(u=fill_in(lazy.u, observe(task, lazy.scores, lazy_partners, lazy.times)))
        yield task.eta(iteration), PairBatch(active, lazy, lazy_partners, independent)


def step(carry: Carry, batch: PairBatch, eta: float, task: PairwiseTask) -> Carry:
    """Lines 13 to 16 of Algorithm 1; if u is tracked, 13 to 18 of Algorithm 2 and 14 to 19 of Algorithm 3."""
    # line 13: h(w, z_1) and h(w, z_2)
    a, b, pull = task.f.forward(carry.x, batch.active)
    # w <- w - eta (G_1 + G_2) or, with u, the step along G
    return descend(carry, pull, find_slopes(carry, a, b, batch, task), eta, task)


def find_slopes(
    carry: Carry, a: Float64[Tensor, "*stack b"], b: Float64[Tensor, "*stack m"], batch: PairBatch, task: PairwiseTask
) -> tuple[Float64[Tensor, "*stack b"], Float64[Tensor, "*stack m"]]:
    """Lines 14 to 16 of Algorithm 1: record the scores, update u, and return the factors of G_1 and G_2.

    Args:
        carry: The step's carry; its u and its history are changed.
        a: h(w, z_1).
        b: h(w, z_2).
        batch: The step's batch.
        task: The client's task.

    Returns:
        The factors of grad h(z_1) and of grad h(z_2).
    """
    f, active, positives, partners, independent = task.f.objective, *batch
    # line 14 of Algorithm 2: h(w, z-hat_1) and h(w, z-hat_2), with u as before this step
    scored = None if independent is None else score_others(carry.x, carry.u, independent, partners, task)
    # line 15 of Algorithm 2: u(z_1), equation (8)
    u = None
    if carry.u is not None:
        u = update_u(carry.u, active.u_rows, observe(task, a, partners, active.events), task)
    # the scores join H_1 and H_2, u joins U
    carry.history.append(scored or Scored(a, u, b, active.labels, active.events, active.spans))
    # G_1 and G_2, equations (4) and (5), with u equation (9): the factors of grad h(z_1) and of grad h(z_2),
    # omega_1i mean_j c_j f'(u_i) d_1 l(a_i, lazy b_j) / b and omega_2i mean_i c_i f'(lazy u_i) d_2 l(lazy a_i, b_j) / m
    s = differences(a, partners.scores, active.events, partners.times)  # (b, m)
    slope = f.slope(s, partners.labels, u)
    first = times(slope, partners.weights) * (-carry.omegas[..., :1] / (s.shape[-2] * s.shape[-1] or 1))
    s = differences(positives.scores, b, positives.times, active.spans)  # (b, m)
    slope = f.slope(s, active.labels, positives.u, carry.num_partners)
    second = times(slope.mT, positives.weights) * (carry.omegas[..., 1:] / (s.shape[-2] * s.shape[-1] or 1))
    return first, second


def finish(carry: Carry, task: PairwiseTask) -> tuple[Float[Tensor, "d"], FedXPredictions, InnerEstimates | None]:
    """Lines 18 and 6 of Algorithm 1, 20 and 6 of Algorithm 2: send the model, G and the history; keep u."""
    x, up, memory = pairwise.finish(carry, task)
    return x, replace(make_predictions(carry.history, task), momentum=up.momentum), memory


# The server half.


def prologue(x: Float[np.ndarray, "d"], plan: Plan[FedXSettings]) -> Exchanges[FedXState]:
    """Lines 2 to 4 of both algorithms; a `ServerHalf.prologue`."""
    # line 2: no prediction yet
    state = FedXState(positive_scores=x[:0], partner_scores=x[:0], runs=np.zeros((0, 6), np.int64))
    # lines 3 and 4: every client scores K batches
    scored = yield Ask(SCORING, plan.everyone)
    return collect(x, state, scored, plan)


def run_round(
    x: Float[np.ndarray, "d"], state: FedXState, plan: Plan[FedXSettings], tracked: bool = False
) -> Exchanges[tuple[Float[np.ndarray, "d"], FedXState]]:
    """Do a round at the server; a `ServerHalf.round`.

    Args:
        tracked: Whether clients send u.
    """
    # lines 24 and 25 of Algorithm 1: send the whole pool to every client; 26 and 27 of Algorithm 2: with U and G
    positives, partners = count_halves(objective_of(plan), plan.class_counts)
    *_, p, q, with_u = state.runs.T
    pool = FedXPool(
        **{name: value for name, value in state.arrays().items() if name != "runs"},
        totals=np.array([len(positives), positives.sum(), partners.sum()], dtype=np.int64),
        positive_lengths=p[p > 0],
        positive_weights=weigh_runs(state, p, positives),
        positive_tracked=with_u[p > 0] > 0 if tracked and p.any() else None,
        partner_lengths=q[q > 0],
        partner_weights=weigh_runs(state, q, partners),
    )
    replies = yield Train(pool)
    # lines 23 and 26 of Algorithm 1, 25 and 27 of Algorithm 2: the histories, the means of the models and of G
    return average(x, collect(x, state, replies, plan), replies, plan)


def make_client(half: ClientHalf) -> ClientHalf:
    return with_findings(half, find_slopes, lambda batch: batch.active, local=False)


CLIENT = ClientHalf(PairwiseRisk, draw_batches, start, step, finish)
FEDX1 = Method(
    make_client(CLIENT),
    server_with_findings(ServerHalf(prologue=prologue, round=run_round)),
    Records(down=FedXPool, up=FedXPredictions, state=FedXState),
    FedXSettings,
    {SCORING: phase_with_findings(Phase(FedXPredictions, score))},
    adjusts=True,
    has_adam=True,
    findings=True,
    averages=True,
    checks=checks_with_findings(Checks(check_linear, check_pairs, bound_history, check_predictions), pooled=True),
    choose=lambda method, settings, loss: (
        with_histograms(method, make_client) if settings.pool == "histogram" else method
    ),
    table="fedx",
    losses=(*LINEAR, CONCORDANCE),
    loss="psm",
    sends="prediction sets of positives and negatives",
    unread=("batch_size", "server_learning_rate"),
    needs_examples="minimises a risk over the pairs of all sites, whatever their sizes",
    weighted_gradients=True,
    sums_instead="set fedx.pool to histogram",
)

FEDX2 = replace(
    FEDX1,
    client=make_client(replace(CLIENT, objective=partial(PairwiseRisk, tracked=True))),
    server=server_with_findings(ServerHalf(prologue=prologue, round=partial(run_round, tracked=True))),
    records=replace(FEDX1.records, memory=InnerEstimates),
    checks=replace(FEDX1.checks, run=check_pool),
    losses=ALL_PAIRWISE,
    loss="kl-opauc",
    sends="prediction sets, inner-function estimates u, momentum",
    default_step=0.1,  # with larger steps an mlp fits too closely to small sites, of 30 to 200 rows
)
