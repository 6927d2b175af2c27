"""FedX (Guo, Jin, Luo, Yang, "FedX: Federated Learning for Compositional Pairwise Risk Optimization", ICML 2023):
Algorithm 1, FedX1, for linear f; Algorithms 2 and 3, FedX2, for any f; the larger buffers of Appendices E and F.

| paper | here |
|---|---|
| H_{i,1}, H_{i,2}, U_i | ``history`` of the `Carry`; up: `FedXPredictions` |
| H_1, H_2, U at the server | `FedXState`, the predictions of the last ``tau`` rounds |
| R_{i,1}, R_{i,2}, P | `FedXPool` |
| B_{i,1}, B_{i,2}, C_i | `fill_buffers`: two `Predictions`, each read in the order of a `PoolQueue` |
| z; h_xi; h_zeta, u_zeta | ``active``; ``partners``; ``positives`` of a `PairBatch` |
| z-hat | ``independent`` of a `PairBatch` |
| G_{i,k,1} + G_{i,k,2} | ``slopes`` in `step`, taken back to the weights |
| omega_1i, omega_2i | ``omegas`` of the `Carry`; in the pool a factor of weights: `weigh_runs` |

`methods.pairwise` has the other symbols.

Differences from the boxes. Line 12 swaps the names of the histories; here the partner of an active positive comes from
the pool of partners, and that of an active partner from the pool of positives. The first observation of a sample is its
first u, since the box's u = 0 would make f' infinite. Predictions of the scoring round come without u; it is observed
on the partners drawn with them. Line 14 records the active samples unless ``independent-history`` is set.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from methods import pairwise
from methods.method import ClientHalf, Method, Phase, Plan, Records, Replies, ServerHalf, as_array
from methods.pairwise import (
    ActiveBatch,
    FedXSettings,
    InnerEstimates,
    PairwiseRisk,
    PairwiseTask,
    active_batches,
    average,
    count_halves,
    descend,
    differences,
    fill_in,
    update_u,
)
from payloads.record import BoolArray, FloatArray, IntArray, Payload, array
from problems.objectives.pairwise import make_objective, times
from problems.randomness import Purpose, secret_normal, stream
from problems.sampling import Indices, PoolQueue, draw_some, on_device

# the exchange before round 1; see `score`
SCORING_ROUND, SCORING = 0, "scoring"

INDEPENDENT = Purpose.INDEPENDENT_POSITIVES, Purpose.INDEPENDENT_PARTNERS


@dataclass(frozen=True, eq=False)
class FedXPredictions(Payload):
    """Up: the predictions a client made in a round and, in FedX2, its momentum. Letters: p positives, q partners, k = 1
    or 2 inner components, d parameters."""

    positive_scores: FloatArray = array("p")
    partner_scores: FloatArray = array("q")
    partner_labels: BoolArray | None = array("q", kind="bool", optional=True)  # auprc only
    positive_u: FloatArray | None = array("p", "k", optional=True)  # FedX2, from its first step on; none with noise
    momentum: FloatArray | None = array("d", optional=True)  # FedX2


@dataclass(frozen=True, eq=False)
class FedXState(FedXPredictions):
    """The server's state: the predictions of the last ``tau`` rounds in n runs, one for each client and round, oldest
    first, and the participants' mean momentum. u is zero in a run that came without u."""

    # of every run: the round and how many clients took part in it, the client's place, how many positives and partners
    # it sent, and whether (1 or 0) it sent u
    runs: IntArray = array("n", 6, kind="int")


@dataclass(frozen=True, eq=False)
class FedXPool(Payload):
    """Down: the pool of the last ``tau`` rounds. Entries are grouped in runs, one for each contributing client and
    round. A run has a length, and one weight for all its entries."""

    # all sites together: clients N, positives |S_1|, partners |S_2|
    totals: IntArray = array(3, kind="int")
    # S_1: scores, inner estimates, and whether a run has estimates yet (those of the scoring round have none)
    positive_scores: FloatArray = array("p")
    positive_lengths: IntArray = array("r", kind="int")
    positive_weights: FloatArray = array("r")
    positive_tracked: BoolArray | None = array("r", kind="bool", optional=True)
    positive_u: FloatArray | None = array("p", "k", optional=True)
    # S_2: scores, and labels where partners are of both classes
    partner_scores: FloatArray = array("q")
    partner_lengths: IntArray = array("s", kind="int")
    partner_weights: FloatArray = array("s")
    partner_labels: BoolArray | None = array("q", kind="bool", optional=True)
    # FedX2, from round 2 on: the average of the clients' momenta
    momentum: FloatArray | None = array("d", optional=True)


# The client half.


class Scored(NamedTuple):
    """The scores of one step: positives, their u, partners and the partners' labels. ``u`` is None unless it is
    tracked, ``labels`` unless the loss reads them."""

    positives: Float64[Tensor, "*stack b"]
    u: Float64[Tensor, "*stack b k"] | None
    partners: Float64[Tensor, "*stack m"]
    labels: Float64[Tensor, "*stack m"] | None


class Predictions(NamedTuple):
    """Predictions of positives or of partners from the pool.

    Attributes:
        scores: one of each.
        weights: the weight of each in a mean.
        u: of positives, NaN where unknown; None unless it is tracked.
        labels: of partners; None where the loss reads none.
    """

    scores: Float64[Tensor, "*stack entries"]
    weights: Float64[Tensor, "*stack entries"]
    u: Any = None  # Float64[Tensor, "*stack entries k"] | None
    labels: Float64[Tensor, "*stack entries"] | None = None

    def take(self, rows: Indices) -> "Predictions":
        places = on_device(rows, self.scores.device)
        return Predictions._make(None if value is None else value[places] for value in self)


class PairBatch(NamedTuple):
    """The input of a local step: the active halves of its pairs (the site's samples), the lazy halves (predictions from
    the pool) and, with ``independent-history``, the sample to record instead of the active one."""

    active: ActiveBatch
    positives: Predictions
    partners: Predictions
    independent: ActiveBatch | None


@dataclass(frozen=True)
class Carry(pairwise.Carry):
    """Also omega_1i and omega_2i, |S_2| and the round's history, which a step adds to."""

    omegas: Float64[Tensor, "*stack 2"]
    num_partners: int
    history: list[Scored]


def observe(
    task: PairwiseTask, scores: Float64[Tensor, "*stack b"], partners: Predictions
) -> Float64[Tensor, "*stack b k"]:
    """Observe the inner mean g of some positives.

    Args:
        task: has the pair loss l.
        scores: of the positives.
        partners: of the pool, with which all of them are paired.

    Returns:
        g in the form in which u is kept.
    """
    return task.f.objective.observe(differences(scores, partners.scores), partners.labels, partners.weights)


@torch.no_grad()
def score_others(
    x: Float[Tensor, "*stack d"],
    u: Float64[Tensor, "positives k"] | None,
    sample: ActiveBatch,
    partners: Any,
    task: PairwiseTask,
) -> Scored:
    """Score a sample that no step trains on.

    Args:
        x: w.
        u: the table of the site's positives; None: leave out u.
        sample: the positives and partners to score.
        partners: `Predictions` from the pool, on which u is observed where the table has none; None without a table.

    Returns:
        The scores and, with a table, the sample's u in there or else as observed now.
    """
    a, b, _ = task.f.forward(x, sample)
    return Scored(a, None if u is None else fill_in(u[sample.places], observe(task, a, partners)), b, sample.labels)


def score(x: Float[Tensor, "d"], down: None, task: PairwiseTask) -> FedXPredictions:
    """Lines 3 and 4 of both algorithms: answer the phase `SCORING`, before any step.

    Args:
        x: the initial model.
        down: nothing comes beside it.
        task: its local steps are the K batches to score.

    Returns:
        The predictions of these batches, without u.
    """
    samples = active_batches(task, task.f.positives, task.training.local_steps)
    return make_predictions([score_others(x, None, sample, None, task) for sample in samples], task)


def start(x: Float[Tensor, "d"], pool: FedXPool | None, memory: InnerEstimates | None, task: PairwiseTask) -> Carry:
    """Lines 7 and 9 of both algorithms, 21 of Algorithm 2: receive the pool (and G, and recall u), begin a history.

    Raises:
        ValueError: no pool came.
        PayloadError: the memory is of other positives, or of another loss.
    """
    if pool is None:
        raise ValueError(f"round {task.server_round}: the inbox is empty, a FedXPool is needed")
    clients, positives, partners = pool.totals.tolist()
    first, second = len(task.f.positives) / max(positives, 1), len(task.f.partners) / max(partners, 1)
    omegas = torch.tensor([clients * first, clients * second], dtype=torch.float64, device=x.device)
    return Carry(**vars(pairwise.start(x, pool, memory, task)), omegas=omegas, num_partners=partners, history=[])


def fill_buffers(task: PairwiseTask, pool: FedXPool) -> tuple[Predictions, Predictions]:
    """Line 8: fill the buffers B_{i,1} with C_i, and B_{i,2}.

    Args:
        task: says whether u is tracked, and whether the control ``pool = "uniform"`` replaces the scores.
        pool: what came down.

    Returns:
        The pool's positives and its partners, on the site's device.
    """
    tensor = partial(torch.tensor, dtype=torch.float64, device=task.site.labels.device)
    if task.settings.pool == "uniform":
        keys = task.site.partition_id, task.server_round
        pool = forget_scores(pool, stream(task.training.seed, Purpose.UNIFORM_POOL, *keys))
    u, labels = pool.positive_u, None if pool.partner_labels is None else tensor(pool.partner_labels)
    if u is None:
        u = np.full((len(pool.positive_scores), task.f.objective.inner_dim), np.nan)
    elif pool.positive_tracked is not None:
        u = np.where(np.repeat(pool.positive_tracked, pool.positive_lengths)[:, None], u, np.nan)
    first = np.repeat(pool.positive_weights, pool.positive_lengths)
    second = np.repeat(pool.partner_weights, pool.partner_lengths)
    positives = Predictions(tensor(pool.positive_scores), tensor(first), u=tensor(u) if task.f.tracked else None)
    return positives, Predictions(tensor(pool.partner_scores), tensor(second), labels=labels)


def forget_scores(pool: FedXPool, rng: np.random.Generator) -> FedXPool:
    """Make a pool without information about other sites, as a control.

    Args:
        pool: has the range of the scores, and how many there are.
        rng: draws the new scores.

    Returns:
        The pool with scores uniform over this range, and without u.
    """
    p, scores = len(pool.positive_scores), np.concatenate((pool.positive_scores, pool.partner_scores))
    drawn = rng.uniform(scores.min(), scores.max(), len(scores))
    return replace(pool, positive_scores=drawn[:p], partner_scores=drawn[p:], positive_u=None, positive_tracked=None)


def queues(task: PairwiseTask, positives: Predictions, partners: Predictions) -> tuple[PoolQueue, PoolQueue]:
    """Line 8: shuffle the buffers.

    Args:
        task: its client and round are the address of the random numbers.
        positives: B_{i,1}, as `fill_buffers` makes it.
        partners: B_{i,2}.

    Returns:
        The orders in which the client takes positives and partners from its buffers.
    """
    own, run, keys = task.settings, task.training, (task.site.partition_id, task.server_round)

    def queue(pool: Predictions, purpose: Purpose, size: int) -> PoolQueue:
        return PoolQueue(len(pool.scores), run.seed, purpose, *keys, wanted=run.local_steps * size)

    first = queue(positives, Purpose.POSITIVE_POOL, own.positive_batch_size)
    return first, queue(partners, Purpose.PARTNER_POOL, own.negative_batch_size)


def draw_batches(task: PairwiseTask, pool: FedXPool) -> Iterator[tuple[float, PairBatch]]:
    """Lines 8, 11 and 12 of both algorithms: what each step samples, and what it takes from the shuffled buffers.

    Args:
        pool: what came down.

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
    # line 11, and the sample of line 14; the scoring round took the first K batches
    samples = active_batches(task, own, training.local_steps)
    rest = active_batches(task, own, training.local_steps, INDEPENDENT)
    others: Iterator[Any] = rest if settings.independent_history else repeat(None)
    for iteration, active, other in zip(task.iterations, samples, others, strict=False):
        # line 12
        lazy = positives.take(first.take(settings.positive_batch_size))
        lazy_partners = partners.take(second.take(settings.negative_batch_size))
        if unknown:
            lazy = lazy._replace(u=fill_in(lazy.u, observe(task, lazy.scores, lazy_partners)))
        yield task.eta(iteration), PairBatch(active, lazy, lazy_partners, other)


def step(carry: Carry, batch: PairBatch, eta: float, task: PairwiseTask) -> Carry:
    """Lines 13 to 16 of Algorithm 1; where u is tracked 13 to 18 of Algorithm 2, 14 to 19 of Algorithm 3."""
    f, active, positives, partners, independent = task.f.objective, *batch
    # line 13: h(w, z_1) and h(w, z_2)
    a, b, pull = task.f.forward(carry.x, active)
    # line 14 of Algorithm 2: h(w, z-hat_1) and h(w, z-hat_2), with u as before this step
    others = None if independent is None else score_others(carry.x, carry.u, independent, partners, task)
    # line 15 of Algorithm 2: u(z_1), equation (8)
    u = None if carry.u is None else update_u(carry.u, active.places, observe(task, a, partners), task)
    # the scores join H_1 and H_2, u joins U
    carry.history.append(others or Scored(a, u, b, active.labels))
    # G_1 and G_2, equations (4) and (5), with u equation (9): the factors of grad h(z_1) and of grad h(z_2),
    # omega_1i mean_j c_j f'(u_i) d_1 l(a_i, lazy b_j) / b and omega_2i mean_i c_i f'(lazy u_i) d_2 l(lazy a_i, b_j) / m
    s = differences(a, partners.scores)  # (b, m)
    slope = f.slope(s, partners.labels, u)
    first = times(slope, partners.weights) * (-carry.omegas[..., :1] / (s.shape[-2] * s.shape[-1] or 1))
    s = differences(positives.scores, b)  # (b, m)
    slope = f.slope(s, active.labels, positives.u, carry.num_partners)
    second = times(slope.mT, positives.weights) * (carry.omegas[..., 1:] / (s.shape[-2] * s.shape[-1] or 1))
    # w <- w - eta (G_1 + G_2) or, with u, the step along G
    return descend(carry, pull, (first, second), eta, task)


def finish(carry: Carry, task: PairwiseTask) -> tuple[Float[Tensor, "d"], FedXPredictions, InnerEstimates | None]:
    """Lines 18 and 6 of Algorithm 1, 20 and 6 of Algorithm 2: the model, G and the history go up; u stays."""
    x, up, memory = pairwise.finish(carry, task)
    return x, replace(make_predictions(carry.history, task), momentum=up.momentum), memory


def make_predictions(history: list[Scored], task: PairwiseTask) -> FedXPredictions:
    """Choose what to send of a history.

    Args:
        history: the scores of each step, or one record of the scores of all.
        task: has ``history-size``, ``prediction-noise`` and the number type to send.

    Returns:
        All predictions or a uniform subsample of at most ``history-size`` of each kind, each positive with its u; with
        noise, which takes u away, if it is set.
    """
    settings, dtype = task.settings, task.training.dtype
    joined: list[Any] = [None if some[0] is None else as_array(torch.cat(some)) for some in zip(*history, strict=True)]
    scores, u, partner_scores, labels = joined
    rng = stream(task.training.seed, Purpose.HISTORY, task.site.partition_id, task.server_round)
    p, q = (draw_some(len(values), settings.history_size or len(values), rng) for values in (scores, partner_scores))
    with np.errstate(over="ignore"):  # a diverged value becomes infinite, and the server reports it
        predictions = FedXPredictions(
            positive_scores=scores[p].astype(dtype),
            partner_scores=partner_scores[q].astype(dtype),
            partner_labels=None if labels is None else labels[q] > 0.5,
            positive_u=None if u is None else u[p].astype(dtype),
        )
    return add_noise(predictions, settings.prediction_noise) if settings.prediction_noise else predictions


def add_noise(predictions: FedXPredictions, deviation: float) -> FedXPredictions:
    """Add Gaussian noise, drawn by the system's generator, to every score.

    Args:
        deviation: the noise's standard deviation, in units of the scores.

    Returns:
        The noisy scores without u, which is a function of the exact score and of predictions that everybody knows, so
        that it would undo the noise.
    """
    exact = {name: value for name, value in predictions.arrays().items() if name.endswith("scores")}
    with np.errstate(over="ignore"):  # a value too large for the number type becomes infinite
        noised = {name: (x + deviation * secret_normal(len(x))).astype(x.dtype) for name, x in exact.items()}
    return replace(predictions, **noised, positive_u=None)


# The server half.


def init(x: Float[np.ndarray, "d"], plan: Plan[FedXSettings]) -> FedXState:
    """Line 2: no prediction yet."""
    return FedXState(positive_scores=x[:0], partner_scores=x[:0], runs=np.zeros((0, 6), np.int64))


def collect(
    x: Float[np.ndarray, "d"], state: FedXState, replies: Replies[FedXPredictions], plan: Plan[FedXSettings]
) -> FedXState:
    """Line 23 of Algorithm 1, 25 of Algorithm 2: a round's predictions join those of the last ``tau`` - 1 rounds.

    Args:
        x: a model, whose number type the predictions get.
        state: after the round before.
        replies: of the round, or of the scoring round.
        plan: its round's number says which predictions are too old.
    """
    made, *_, p, q, _ = state.runs.T
    old = made < np.union1d(made, plan.server_round)[-plan.settings.tau :][0]
    parts, runs = [state, *replies.ups], [*state.runs[~old]]
    for place, up in zip(replies.places, replies.ups, strict=True):
        lengths = len(up.positive_scores), len(up.partner_scores)
        runs.append((plan.server_round, len(replies.ups), place, *lengths, up.positive_u is not None))
    labels = [part.partner_labels for part in parts if part.partner_labels is not None]
    inner = max((part.positive_u.shape[1] for part in parts if part.positive_u is not None), default=0)
    u = [np.zeros((len(part.positive_scores), inner)) if part.positive_u is None else part.positive_u for part in parts]
    # the oldest runs come first
    p, q = p[old].sum(), q[old].sum()
    return replace(
        state,
        positive_scores=np.concatenate([part.positive_scores for part in parts])[p:].astype(x.dtype),
        partner_scores=np.concatenate([part.partner_scores for part in parts])[q:].astype(x.dtype),
        partner_labels=np.concatenate(labels)[q:] if labels else None,
        positive_u=np.concatenate(u)[p:].astype(x.dtype) if inner else None,
        runs=np.array(runs, np.int64),
    )


def weigh_runs(
    state: FedXState, lengths: Int64[np.ndarray, "runs"], counts: Int64[np.ndarray, "N"]
) -> Float[np.ndarray, "filled"]:
    """The weight of the entries of each run that has any, so that the mean over the pool estimates (2) and (6).

    The inner mean is (1/N) sum_j omega_j mean_j. Let the pool have P entries from T rounds, and let run r have n_r
    entries and come from a round of |P_r| participants. The pool's mean estimates the inner mean when an entry weighs
    omega_j P / (T |P_r| n_r). That is exactly omega_j where all clients send equally many, and it is also right where
    a small site sends fewer or a site with one class sends none.

    Args:
        state: has the runs, with the round and the client of each.
        lengths: how many entries every run has.
        counts: the samples of their class at each site.
    """
    rounds, participants, places, *_ = state.runs.T
    some = lengths > 0
    omegas = len(counts) * counts[places[some]] / counts.sum()
    weights: FloatArray = omegas * lengths.sum() / (len(np.unique(rounds)) * participants[some] * lengths[some])
    return weights.astype(state.positive_scores.dtype)


def tell(x: Float[np.ndarray, "d"], state: FedXState, plan: Plan[FedXSettings], tracked: bool = False) -> FedXPool:
    """Lines 24 and 25 of Algorithm 1: the whole pool goes to every client; 26 and 27 of Algorithm 2: with U and G."""
    positives, partners = count_halves(make_objective(plan.loss, **plan.settings.objective_options), plan.class_counts)
    *_, p, q, with_u = state.runs.T
    return FedXPool(
        **{name: value for name, value in state.arrays().items() if name != "runs"},
        totals=np.array([len(positives), positives.sum(), partners.sum()], dtype=np.int64),
        positive_lengths=p[p > 0],
        positive_weights=weigh_runs(state, p, positives),
        positive_tracked=with_u[p > 0] > 0 if tracked and p.any() else None,
        partner_lengths=q[q > 0],
        partner_weights=weigh_runs(state, q, partners),
    )


def update(
    x: Float[np.ndarray, "d"], state: FedXState, replies: Replies[FedXPredictions], plan: Plan[FedXSettings]
) -> tuple[Float[np.ndarray, "d"], FedXState]:
    """Lines 23 and 26 of Algorithm 1, 25 and 27 of Algorithm 2: the histories, the means of the models and of G."""
    return average(x, collect(x, state, replies, plan), replies, plan)


FEDX1 = Method(
    ClientHalf(PairwiseRisk, draw_batches, start, step, finish),
    ServerHalf(init, tell, update),
    Records(down=FedXPool, up=FedXPredictions, state=FedXState),
    FedXSettings,
    {SCORING: Phase(FedXPredictions, score)},
    "psm",
)

FEDX2 = replace(
    FEDX1,
    client=replace(FEDX1.client, objective=partial(PairwiseRisk, tracked=True)),
    server=replace(FEDX1.server, tell=partial(tell, tracked=True)),
    records=replace(FEDX1.records, memory=InnerEstimates),
    loss="kl-opauc",
)
