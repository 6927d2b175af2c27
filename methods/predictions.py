"""The path of FedX's predictions: from a client's history through the server into the buffers of all clients.

A prediction is the score of a sample with, if tracked, the estimate u. A client records predictions in each step of a
round (its history) and sends them. The server collects them (the pool) and sends the pool to all clients of the next
round, which draw from it in random order (the buffers).

| FedX's paper | here |
|---|---|
| H_{i,1}, H_{i,2}, U_i | a list of `Scored`; up: `FedXPredictions` |
| H_1, H_2, U at the server | `FedXState`, the predictions of the last ``tau`` rounds |
| R_{i,1}, R_{i,2}, P | `FedXPool` |
| B_{i,1}, B_{i,2}, C_i | `fill_buffers`: two `Predictions`, each read in the order of a `PoolQueue` |
| omega_1i, omega_2i | a factor of the weights in the pool: `weigh_runs` |

`methods.fedx` has the algorithms and the other symbols.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from methods.fedx_settings import FedXSettings, count_halves, objective_of
from methods.method import as_array
from methods.pair_batches import Predictions
from methods.pairwise import PairwiseTask
from methods.server import Plan, Replies
from payloads.record import BoolArray, FloatArray, IntArray, Payload, PayloadError, array
from problems.errors import InputError
from problems.objectives.hazard import CONCORDANCE
from problems.randomness import Purpose, secret_normal, stream
from problems.sampling import PoolQueue, draw_some


@dataclass(frozen=True, eq=False)
class FedXPredictions(Payload):
    """A client's reply: its predictions in a round and, in FedX2, its momentum.

    The dimensions: p positives, q partners, k = 1 or 2 components of u, d parameters.
    """

    positive_scores: FloatArray = array("p")
    partner_scores: FloatArray = array("q")
    partner_labels: BoolArray | None = array("q", kind="bool", optional=True)  # auprc only
    positive_u: FloatArray | None = array("p", "k", optional=True)  # FedX2, from its first step on; none with noise
    momentum: FloatArray | None = array("d", optional=True, combined="mean")  # FedX2
    # concordance only: the interval of each positive's event, and the first and last interval of each partner's span
    positive_times: IntArray | None = array("p", kind="int", optional=True)
    partner_times: IntArray | None = array("q", 2, kind="int", optional=True)
    # several findings only, see `methods.finding_records`
    cuts: IntArray | None = array("f", "l", kind="int", optional=True)


@dataclass(frozen=True, eq=False)
class FedXState(FedXPredictions):
    """The server's state: the predictions of the last ``tau`` rounds, and the mean momentum of the round's clients.

    The predictions are stored in n runs: a run is one client's predictions of one round. The oldest runs come first. If
    a client sent no u, the run's u is zero.
    """

    # for every run: the round, the round's number of clients, the client's partition id, the client's numbers of
    # positives and partners, and 1 if the client sent u, else 0
    runs: IntArray = array("n", 6, kind="int")


@dataclass(frozen=True, eq=False)
class FedXPool(Payload):
    """The record sent to the clients: the pool, all predictions of the last ``tau`` rounds.

    The entries are grouped in runs: a run is one client's predictions of one round. A run has a length, and a single
    weight for all its entries.
    """

    # all sites together: clients N, positives |S_1|, partners |S_2|; with several findings, of each finding
    totals: IntArray = array("t", kind="int")
    # S_1: scores, inner estimates, and whether a run has estimates yet (the scoring round's runs have none)
    positive_scores: FloatArray = array("p")
    positive_lengths: IntArray = array("r", kind="int")
    positive_weights: FloatArray = array("r")
    positive_tracked: BoolArray | None = array("r", kind="bool", optional=True)
    positive_u: FloatArray | None = array("p", "k", optional=True)
    # S_2: scores, and labels if partners are of both classes
    partner_scores: FloatArray = array("q")
    partner_lengths: IntArray = array("s", kind="int")
    partner_weights: FloatArray = array("s")
    partner_labels: BoolArray | None = array("q", kind="bool", optional=True)
    # FedX2, from round 2 on: the average of the clients' momenta
    momentum: FloatArray | None = array("d", optional=True)
    # concordance only, as in `FedXPredictions`
    positive_times: IntArray | None = array("p", kind="int", optional=True)
    partner_times: IntArray | None = array("q", 2, kind="int", optional=True)
    # several findings only, see `methods.finding_records`
    cuts: IntArray | None = array("f", "l", kind="int", optional=True)


# From a client's history up.


class Scored(NamedTuple):
    """The scores of one step: of the positives, with their u if u is tracked, and of the partners, with their labels if
    the loss needs labels, and the times of both if the loss needs times."""

    positives: Float64[Tensor, "*stack b"]
    u: Float64[Tensor, "*stack b k"] | None
    partners: Float64[Tensor, "*stack m"]
    labels: Float64[Tensor, "*stack m"] | None
    events: Int64[Tensor, "*stack b"] | None = None
    spans: Int64[Tensor, "*stack m 2"] | None = None


def make_predictions(history: list[Scored], task: PairwiseTask) -> FedXPredictions:
    """Choose the part of a history to send.

    Args:
        history: The scores of each step, or one record of the scores of all steps.
        task: The client's task; provides ``history-size``, ``prediction-noise`` and the number type to send.

    Returns:
        All predictions or a uniform subsample of at most ``history-size`` of each kind, each positive with its u. With
        ``prediction-noise``, noisy scores without u.

    Raises:
        InputError: The loss needs times, and the site protects small cells.
    """
    refuse_times(task)
    settings, dtype = task.settings, task.training.dtype
    joined: list[Any] = [
        None if parts[0] is None else as_array(torch.cat(parts)) for parts in zip(*history, strict=True)
    ]
    scores, u, partner_scores, labels, events, spans = joined
    rng = stream(task.training.seed, Purpose.HISTORY, task.site.partition_id, task.server_round)
    p, q = (draw_some(len(values), settings.history_size or len(values), rng) for values in (scores, partner_scores))
    with np.errstate(over="ignore"):  # a diverged value becomes infinite, and the server reports it
        predictions = FedXPredictions(
            positive_scores=scores[p].astype(dtype),
            partner_scores=partner_scores[q].astype(dtype),
            partner_labels=None if labels is None else labels[q] > 0.5,
            positive_u=None if u is None else u[p].astype(dtype),
            positive_times=None if events is None else events[p].astype(np.int32),
            partner_times=None if spans is None else spans[q].astype(np.int32),
        )
    return add_noise(predictions, settings.prediction_noise) if settings.prediction_noise else predictions


def refuse_times(task: PairwiseTask, summed: int = 1) -> None:
    """Refuse to send the times of rows if the site protects small cells.

    With its score and its time a row is known to the server and to all sites. Most counts by time and score are 0 or 1,
    so they are sent only in a secure sum, from which no receiver learns the site of a row.

    Args:
        task: The client's task; provides the loss and the site.
        summed: The number of clients in a sum with these times. 1: the receivers see the site's own times.

    Raises:
        InputError: The loss needs times, the site protects small cells, and the times are not in a sum.
    """
    if task.loss == CONCORDANCE and task.site.least_cell > 1 and summed == 1:
        got = f"{task.settings.pool!r}, with the times of single rows"
        allowed = "'histogram' with privacy.secure-sum, or sites with least-cell = 1"
        hint = "set fedx.pool to 'histogram', score to 'sigmoid' and privacy.secure-sum to true, or use local-pair"
        raise InputError("fedx.pool", got=got, allowed=allowed, hint=hint)


def add_noise(predictions: FedXPredictions, deviation: float) -> FedXPredictions:
    """Add Gaussian noise, drawn by the system's generator, to every score.

    Args:
        deviation: The noise's standard deviation, in units of the scores.

    Returns:
        The noisy scores without u: u is a function of the exact score and of public predictions, so it would undo the
        noise.
    """
    exact = {name: value for name, value in predictions.arrays().items() if name.endswith("scores")}
    with np.errstate(over="ignore"):  # a value too large for the number type becomes infinite
        noised = {name: (x + deviation * secret_normal(len(x))).astype(x.dtype) for name, x in exact.items()}
    return replace(predictions, **noised, positive_u=None)


# From replies into the server's state and the pool's weights.


def collect(
    x: Float[np.ndarray, "d"], state: FedXState, replies: Replies[FedXPredictions], plan: Plan[FedXSettings]
) -> FedXState:
    """Line 23 of Algorithm 1, 25 of Algorithm 2: append a round's predictions to those of the last ``tau`` - 1 rounds.

    Args:
        x: The model. The predictions get the model's number type.
        state: The state after the previous round.
        replies: The replies of the round, or of the scoring round.
        plan: The round's plan. The round's number determines which predictions are too old.
    """
    rounds, *_, p, q, _ = state.runs.T
    old = rounds < np.union1d(rounds, plan.server_round)[-plan.settings.tau :][0]
    parts, runs = [state, *replies.ups], [*state.runs[~old]]
    for client, up in zip(replies.clients, replies.ups, strict=True):
        lengths = len(up.positive_scores), len(up.partner_scores)
        runs.append((plan.server_round, len(replies.ups), client, *lengths, up.positive_u is not None))
    labels = [part.partner_labels for part in parts if part.partner_labels is not None]
    events = [part.positive_times for part in parts if part.positive_times is not None]
    spans = [part.partner_times for part in parts if part.partner_times is not None]
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
        positive_times=np.concatenate(events)[p:] if events else None,
        partner_times=np.concatenate(spans)[q:] if spans else None,
        runs=np.array(runs, np.int64),
    )


def weigh_runs(
    state: FedXState, lengths: Int64[np.ndarray, "runs"], counts: Int64[np.ndarray, "N"]
) -> Float[np.ndarray, "filled"]:
    """Compute the weight of the entries of each non-empty run, so the mean over the pool estimates equations (2), (6).

    The inner mean over all N sites is (1/N) sum_j omega_j mean_j: omega_j is site j's number of samples divided by the
    mean number, and mean_j the mean over the site's samples. Let the pool have P entries from T rounds, and let run r,
    of site j, have n_r entries and come from a round of |P_r| participants. The pool's mean estimates the inner mean if
    an entry has the weight omega_j P / (T |P_r| n_r). This weight equals omega_j if all clients send equally many
    entries. It is also correct if a small site sends fewer entries, or a site with one class sends none.

    Args:
        state: The server's state, with the round and the client of each run.
        lengths: The number of entries in every run.
        counts: The number of samples of the entries' kind at each site.
    """
    rounds, participants, clients, *_ = state.runs.T
    filled = lengths > 0
    omegas = len(counts) * counts[clients[filled]] / counts.sum()
    weights: FloatArray = omegas * lengths.sum() / (len(np.unique(rounds)) * participants[filled] * lengths[filled])
    return weights.astype(state.positive_scores.dtype)


def bound_history(client: int, model: object, plan: Plan[FedXSettings]) -> dict[str, int]:
    """Bound the number of a client's predictions; a `Checks.limits`.

    A client sends at most K batches, each no larger than the site's samples, and at most ``history-size`` predictions.

    Returns:
        The maximum numbers p of positives and q of partners, and the number k of components of u.
    """
    fedx, steps, objective = plan.settings, plan.training.local_steps, objective_of(plan)
    own = [int(counts[client]) for counts in count_halves(objective, plan.class_counts)]
    positives = steps * min(fedx.positive_batch_size, own[0])
    partners = steps * min(fedx.negative_batch_size, own[1])
    limit = fedx.history_size or max(positives, partners)
    return {"p": min(limit, positives), "q": min(limit, partners), "k": objective.inner_dim}


def check_predictions(record: FedXPredictions, model: object, plan: Plan[FedXSettings]) -> None:
    """Check the shape of u, the presence of labels, and the times; a `Checks.record`."""
    objective, noisy = objective_of(plan), plan.settings.prediction_noise > 0
    if record.positive_u is not None and record.positive_u.shape[1] != objective.inner_dim:
        raise PayloadError(f"positive_u: {record.positive_u.shape[1]} components, expected {objective.inner_dim}")
    if (record.partner_labels is None) == objective.labelled:
        raise PayloadError("partner_labels: needed for auprc and for no other loss")
    if record.momentum is not None and record.positive_u is None and not noisy:
        raise PayloadError("positive_u: missing although a momentum was sent")
    if record.positive_u is not None and noisy:
        raise PayloadError("positive_u: would undo the noise of fedx.prediction-noise, which is on")
    check_times(record, plan.num_times if objective.timed else 0)


def check_times(record: FedXPredictions, intervals: int) -> None:
    """Check the presence and the ranges of times.

    Args:
        record: A client's predictions.
        intervals: K. 0: the loss ignores times.

    Raises:
        PayloadError: Times are missing or superfluous, or no row can have them.
    """
    events, spans = record.positive_times, record.partner_times
    if {events is None, spans is None} != {intervals == 0}:
        raise PayloadError("positive_times, partner_times: needed for concordance and for no other loss")
    if events is None or spans is None:
        return
    if ((events < 0) | (events >= intervals)).any():
        raise PayloadError(f"positive_times: expected intervals from 0 to {intervals - 1}")
    first, last = spans.T
    # a row with an event in the interval of its entry has a span that ends one interval before
    if ((first < 0) | (first > last + 1) | (first >= intervals) | (last >= intervals)).any():
        raise PayloadError(f"partner_times: expected spans of intervals from 0 to {intervals - 1}")


# From the pool into a client's buffers.


def fill_buffers(task: PairwiseTask, pool: FedXPool) -> tuple[Predictions, Predictions]:
    """Fill the buffers B_{i,1} with C_i, and B_{i,2} (line 8 of both algorithms).

    Args:
        task: The client's task; determines whether u is tracked.
        pool: The pool in the message.

    Returns:
        The pool's positives and its partners, on the site's device.

    Raises:
        PayloadError: The loss needs times, and the pool has none.
    """
    if task.f.objective.timed and (pool.positive_times is None or pool.partner_times is None):
        raise PayloadError("positive_times, partner_times: missing in the pool")
    tensor = partial(torch.tensor, dtype=torch.float64, device=task.site.labels.device)
    u, labels = pool.positive_u, None if pool.partner_labels is None else tensor(pool.partner_labels)
    if u is None:
        u = np.full((len(pool.positive_scores), task.f.objective.inner_dim), np.nan)
    elif pool.positive_tracked is not None:
        u = np.where(np.repeat(pool.positive_tracked, pool.positive_lengths)[:, None], u, np.nan)
    first = np.repeat(pool.positive_weights, pool.positive_lengths)
    second = np.repeat(pool.partner_weights, pool.partner_lengths)
    events, spans = (
        None if times is None else torch.tensor(times, dtype=torch.int64, device=task.site.labels.device)
        for times in (pool.positive_times, pool.partner_times)
    )
    positives = Predictions(
        tensor(pool.positive_scores), tensor(first), u=tensor(u) if task.f.tracked else None, times=events
    )
    return positives, Predictions(tensor(pool.partner_scores), tensor(second), labels=labels, times=spans)


def queues(task: PairwiseTask, positives: Predictions, partners: Predictions) -> tuple[PoolQueue, PoolQueue]:
    """Shuffle the buffers (line 8 of both algorithms).

    Args:
        task: The client's task; the client and the round determine the random order.
        positives: B_{i,1}, made by `fill_buffers`.
        partners: B_{i,2}.

    Returns:
        The orders in which the client takes positives and partners from its buffers.
    """
    own, run, keys = task.settings, task.training, (task.site.partition_id, task.server_round)

    def queue(pool: Predictions, purpose: Purpose, size: int) -> PoolQueue:
        return PoolQueue(len(pool.scores), run.seed, purpose, *keys, wanted=run.local_steps * size)

    first = queue(positives, Purpose.POSITIVE_POOL, own.positive_batch_size)
    return first, queue(partners, Purpose.PARTNER_POOL, own.negative_batch_size)
