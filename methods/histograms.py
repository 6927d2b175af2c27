"""FedX without single scores: the pool as two histograms, of all positives' scores and of all negatives'.

FedX (`methods.fedx`) needs only the distribution of the other sites' scores: the lazy parts of equations (4) and (5)
are means over this distribution. With ``pool = "histogram"`` a client counts the scores of all its samples, after its
round's steps, in ``bins`` equal bins of the score's range. The server adds up the counts. A client uses every bin's
middle as a prediction, weighted by the bin's share of the samples, so drawing adds no noise to a step. The u of a lazy
positive is the inner mean over the partners' histogram.

With ``pool-epsilon`` each client adds Gaussian noise to its counts, drawn by the system's generator and rounded. In a
secure sum of at least n clients, each adds 1 / n of the variance. A sample counts once in each histogram of the run.

Every sample counts once, so larger sites have larger shares, and the paper's factors omega_j are not needed.

With several findings (`methods.pair_findings`) each finding has two histograms, of the rows in which it is known. The
network scores all samples once. A budget (``pool-epsilon``) needs a single label.

With ``concordance`` a histogram has a bin for each interval of the exit and each bin of the score, interval by
interval. Positives are the rows with an event. Entries are not counted, so all rows enter in interval 0.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from logging import getLogger
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from methods import pairwise
from methods.fedx_settings import FedXSettings, count_halves, objective_of
from methods.finding_records import EqualParts, join_records
from methods.method import ClientHalf, Method, Phase
from methods.pair_batches import PairBatch, Predictions
from methods.pair_findings import FindingsRisk, checks_with_findings, server_with_findings, tasks_of
from methods.pairwise import PairwiseTask, active_batches, average, observe
from methods.predictions import refuse_times
from methods.server import Ask, Exchanges, Plan, Replies, ServerHalf, Train
from payloads.record import FloatArray, IntArray, PayloadError, array
from payloads.settings import TrainingSettings
from privacy.budget import epsilon_of, noise_for
from problems.least_cell import Groups
from problems.randomness import secret_normal

# the exchange before round 1, in which clients score their samples
SCORING = "scoring"


@dataclass(frozen=True, eq=False)
class ScoreHistograms(EqualParts):
    """A client's reply: the numbers of its samples by class and by bin of their score; in FedX2 also its momentum.

    With ``concordance``: by event or censoring, and by interval of the exit and bin of the score. With findings: one
    finding after another.
    """

    parted = ("positive_counts", "negative_counts")

    positive_counts: IntArray = array("h", kind="int", combined="total")
    negative_counts: IntArray = array("h", kind="int", combined="total")
    momentum: FloatArray | None = array("d", optional=True, combined="mean")


@dataclass(frozen=True, eq=False)
class HistogramState(EqualParts):
    """The server's state.

    Attributes:
        recent: The sums of the counts in each of the last ``tau`` rounds, positives first.
        precision: With a budget, the sum of 1 / variance of the noise over all histograms so far.
        momentum: The mean momentum of the round's clients.
    """

    parted = ("recent",)
    recent: IntArray = array("t", "e", kind="int")
    precision: FloatArray | None = array(1, optional=True)
    momentum: FloatArray | None = array("d", optional=True)


@dataclass(frozen=True, eq=False)
class HistogramPool(EqualParts):
    """The record sent to the clients: all sites' counts by class and bin, summed over the last ``tau`` rounds."""

    parted = ("totals", "positive_counts", "negative_counts")
    # all sites together: clients N, positives |S_1|, partners |S_2|; with several findings, of each finding
    totals: IntArray = array("t", kind="int")
    positive_counts: IntArray = array("h", kind="int")
    negative_counts: IntArray = array("h", kind="int")
    # FedX2, from round 2 on: the average of the clients' momenta
    momentum: FloatArray | None = array("d", optional=True)


# The client half.


def count_scores(x: Float[Tensor, "d"], task: PairwiseTask) -> ScoreHistograms:
    """Count the scores of all samples of a site. With findings: the scores for each finding, after one another.

    Args:
        x: w, the model that scores the samples.
        task: The client's task; provides the samples, the score, and the number of bins.

    Raises:
        ValueError: A score is not finite, in a run without secure sums and without a budget.
        InputError: The loss needs times, and the site protects small cells without secure sums.
    """
    model = task.f.model
    if x.data_ptr() != model.parameters.data_ptr():
        model.parameters.copy_(x)
    scores = task.f.score.value(model.predict(task.site.features).double()).cpu().numpy()
    if not isinstance(task.f, FindingsRisk):
        return _count(scores, task)
    tasks = tasks_of(task)
    known = [own.site.labels.cpu().numpy() >= 0 for own in tasks]
    return join_records(
        [_count(scores[:, index].copy(), own, rows) for index, (own, rows) in enumerate(zip(tasks, known, strict=True))]
    )


def _count(
    scores: Float[np.ndarray, "n"], task: PairwiseTask, known: Bool[np.ndarray, "n"] | None = None
) -> ScoreHistograms:
    """Count the scores of samples with a known label; None: all labels are known. Changes the scores."""
    refuse_times(task, task.summed)
    site, (low, high) = task.site, bounds_of(task)
    if not np.isfinite(scores).all():
        # an error would reveal a fact about one site, or about one row beyond the budget
        if task.summed == 1 and not task.settings.pool_epsilon:
            raise ValueError("a score is not finite: the run has diverged")
        getLogger("flwr").warning(
            "%d scores of this site are not finite: the run has diverged", (~np.isfinite(scores)).sum()
        )
        scores = np.nan_to_num(scores, nan=low, posinf=high, neginf=low)
    bins = task.settings.bins
    positive = site.labels.cpu().numpy() > 0.5
    negative = ~positive if known is None else known & ~positive
    timed = site.periods if task.f.objective.timed else None
    if site.least_cell > 1 and not task.settings.pool_epsilon and timed is None:  # no row counts by itself
        for rows in (positive, negative):
            groups = Groups.of(scores[rows], site.least_cell)
            scores[rows] = np.repeat(groups.centres, groups.sizes)
    binned = np.clip(((scores - low) / (high - low) * bins).astype(np.int64), 0, bins - 1)
    if timed is not None:
        binned, bins = binned + bins * timed.exits, bins * timed.num_intervals
    counts = [np.bincount(binned[rows], minlength=bins).astype(np.int64) for rows in (positive, negative)]
    if deviation := deviation_of(task.settings, task.training):
        share = max(deviation / np.sqrt(task.summed), 1.0)  # rounding would remove much smaller noise
        counts = [count + np.rint(share * secret_normal(bins)).astype(np.int64) for count in counts]
    return ScoreHistograms(positive_counts=counts[0], negative_counts=counts[1])


def score(x: Float[Tensor, "d"], down: None, task: PairwiseTask) -> ScoreHistograms:
    """Answer the phase `SCORING` (lines 3 and 4 of both algorithms) with the counts of all samples."""
    return count_scores(x, task)


def deviation_of(settings: FedXSettings, training: TrainingSettings) -> float:
    """Return the standard deviation of the noise in a sum of counts; 0 without a budget.

    A run releases one histogram in its scoring round, and one in each round.
    """
    if not settings.pool_epsilon:
        return 0.0
    return noise_for(settings.pool_epsilon, settings.pool_delta, training.num_server_rounds + 1)


def bounds_of(task: PairwiseTask) -> tuple[float, float]:
    """Return the range of the scores. The server has checked that the scores are bounded."""
    assert task.f.score.bounds is not None
    return task.f.score.bounds


def fill_from_counts(task: PairwiseTask, pool: HistogramPool) -> tuple[Predictions, Predictions]:
    """Make a prediction of each bin of the histograms.

    Args:
        task: The client's task; provides the score's range, and whether u is tracked.
        pool: The pool in the message.

    Returns:
        The positives and the partners, on the site's device. Empty for a class that no site has.
    """
    (low, high), device, bins = bounds_of(task), task.site.labels.device, task.settings.bins
    middles = low + (high - low) * (np.arange(bins) + 0.5) / bins
    if task.f.objective.timed:
        return fill_from_times(task, pool, middles)

    def predict(*counts: Int64[np.ndarray, "bins"]) -> Predictions:
        both = np.maximum(np.concatenate(counts), 0)  # noise makes small counts negative
        if not both.sum():
            return Predictions(*(torch.zeros(0, dtype=torch.float64, device=device) for _ in range(2)))
        values = np.tile(middles, len(counts)), both * (len(both) / both.sum())
        return Predictions(*(torch.tensor(value, dtype=torch.float64, device=device) for value in values))

    positives = predict(pool.positive_counts)
    if task.f.objective.partners == "all":
        partners = predict(pool.positive_counts, pool.negative_counts)
        labels = (torch.arange(len(partners.scores), device=device) < bins).double()
        partners = partners._replace(labels=labels)
    else:
        partners = predict(pool.negative_counts)
    if task.f.tracked:
        u = observe(task, positives.scores, partners)
        positives = positives._replace(u=u if len(partners.scores) else torch.full_like(u, torch.nan))
    return positives, partners


def fill_from_times(
    task: PairwiseTask, pool: HistogramPool, middles: Float[np.ndarray, "bins"]
) -> tuple[Predictions, Predictions]:
    """Make a prediction of each bin that has rows, for ``concordance``.

    Args:
        task: The client's task; determines whether u is tracked.
        pool: The pool in the message.
        middles: The score in the middle of each bin of scores.

    Returns:
        The rows with an event and the partners, on the site's device. Empty if no site has such rows.
    """
    device = task.site.labels.device

    def predict(counts: Int64[np.ndarray, "cells"], ends: Int64[np.ndarray, "cells"]) -> tuple[Predictions, Tensor]:
        counts = np.maximum(counts, 0)  # noise makes small counts negative
        (used,) = counts.nonzero()
        weights = counts[used] * (len(used) / max(counts.sum(), 1))
        values = (torch.tensor(part, device=device) for part in (middles[used % len(middles)], weights))
        return Predictions(*values), torch.tensor(ends[used], device=device)

    exits = np.repeat(np.arange(len(pool.positive_counts) // len(middles)), len(middles))
    positives, events = predict(pool.positive_counts, exits)
    # an event ends its row's span in the interval before
    both = np.concatenate([pool.positive_counts, pool.negative_counts])
    partners, last = predict(both, np.concatenate([exits - 1, exits]))
    positives = positives._replace(times=events)
    partners = partners._replace(times=torch.stack([torch.zeros_like(last), last], dim=-1))
    if task.f.tracked:  # no slope depends on u, since f is linear
        positives = positives._replace(u=torch.zeros_like(positives.scores)[:, None])
    return positives, partners


def draw_batches(task: PairwiseTask, pool: HistogramPool) -> Iterator[tuple[float, PairBatch]]:
    """Pair the samples of every step with all bins of the pool; a `ClientHalf.batches`.

    Args:
        pool: The pool in the message.

    Returns:
        The step size and the batch of each iteration.
    """
    own = task.f.positives
    positives, partners = fill_from_counts(task, pool)
    if task.f.tracked and not len(partners.scores):  # u cannot be observed: leave out the positives
        own, positives = own[:0], positives.take(np.arange(0))
    samples = active_batches(task, own, task.training.local_steps)
    for iteration, active in zip(task.iterations, samples, strict=True):
        yield task.eta(iteration), PairBatch(active, positives, partners)


# The server half.


def prologue(x: Float[np.ndarray, "d"], plan: Plan[FedXSettings]) -> Exchanges[HistogramState]:
    """Lines 2 to 4 of both algorithms: every client counts its scores; a `ServerHalf.prologue`."""
    scored = yield Ask(SCORING, plan.everyone)
    return collect_counts(HistogramState(recent=np.zeros((0, 2 * count_cells(plan)), np.int64)), scored, plan)


def run_round(
    x: Float[np.ndarray, "d"], state: HistogramState, plan: Plan[FedXSettings]
) -> Exchanges[tuple[Float[np.ndarray, "d"], HistogramState]]:
    """Send the counts of the last rounds, with G; average the models and G. A `ServerHalf.round`."""
    own, partners = count_halves(objective_of(plan), plan.class_counts)
    positives, negatives = np.split(state.recent.sum(axis=0), 2)
    pool = HistogramPool(
        totals=np.array([len(own), own.sum(), partners.sum()], dtype=np.int64),
        positive_counts=positives,
        negative_counts=negatives,
        momentum=state.momentum,
    )
    replies = yield Train(pool)
    return average(x, collect_counts(state, replies, plan), replies, plan)


def collect_counts(
    state: HistogramState, replies: Replies[ScoreHistograms], plan: Plan[FedXSettings]
) -> HistogramState:
    """Add the sum of a round's counts to the sums of the last ``tau`` - 1 rounds.

    Args:
        state: The state after the previous round.
        replies: The replies of the round, or of the scoring round.
        plan: The round's plan; provides ``tau``.
    """
    fresh = [sum(getattr(up, name) for up in replies.ups) for name in ("positive_counts", "negative_counts")]
    recent = np.concatenate([state.recent, np.concatenate(fresh)[None]])[-plan.settings.tau :]
    deviation = deviation_of(plan.settings, plan.training)
    if not deviation:
        return replace(state, recent=recent)
    before = 0.0 if state.precision is None else state.precision[0]
    return replace(state, recent=recent, precision=np.array([before + deviation**-2]))


def report(state: HistogramState, plan: Plan[FedXSettings]) -> dict[str, float]:
    """Report the epsilon that the histograms have spent so far; a `ServerHalf.report`."""
    if state.precision is None:
        return {}
    return {"pool_epsilon": epsilon_of(state.precision[0] ** -0.5, plan.settings.pool_delta, 1)}


def count_cells(plan: Plan[FedXSettings]) -> int:
    """Return the number of counts of a class."""
    return plan.settings.bins * (plan.num_times if objective_of(plan).timed else 1)


def check_counts(record: ScoreHistograms, model: object, plan: Plan[FedXSettings]) -> None:
    """Check the number of bins and, without noise, the sign of the counts; a `Checks.record`."""
    bins = count_cells(plan)
    for counts in (record.positive_counts, record.negative_counts):
        if len(counts) != bins or ((counts < 0).any() and not plan.settings.pool_epsilon):
            raise PayloadError(f"counts in {len(counts)} bins, expected numbers >= 0 in {bins} bins")


def with_histograms(method: Method, wrap: Callable[[ClientHalf], ClientHalf]) -> Method:
    """Return the variant of FedX whose pool is two histograms.

    Args:
        method: `methods.fedx.FEDX1` or `methods.fedx.FEDX2`.
        wrap: The function that adds findings to a client half.
    """
    half = wrap(replace(method.client, batches=draw_batches, finish=pairwise.finish))

    def finish(carry: Any, task: PairwiseTask) -> tuple[Float[Tensor, "d"], ScoreHistograms, Any]:
        """Send the model, G and the counts of the new model's scores; keep u."""
        x, up, memory = half.finish(carry, task)
        return x, replace(count_scores(x, task), momentum=up.momentum), memory

    limited = replace(method.checks, limits=lambda client, model, plan: {"h": count_cells(plan)}, record=check_counts)
    return replace(
        method,
        client=replace(half, finish=finish),
        server=server_with_findings(ServerHalf(prologue=prologue, round=run_round, report=report)),
        records=replace(method.records, down=HistogramPool, up=ScoreHistograms, state=HistogramState),
        phases={SCORING: Phase(ScoreHistograms, score)},
        checks=checks_with_findings(limited, pooled=True),
    )
