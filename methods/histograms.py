"""FedX without anybody's scores: the pool as two histograms, of all positives' scores and of all negatives'.

What FedX needs of the others is the distribution of their scores: the lazy parts of (4) and (5) are means over it. With
``pool = "histogram"`` a client counts the scores of all its samples, after its round's steps, in ``bins`` equal bins of
the score's range; the server adds the counts up, and a client takes every bin's middle as a prediction, weighted by its
share. So a step has no noise from drawing. The u of a lazy positive is the inner mean over the partners' histogram.

With ``pool-epsilon`` each client adds Gaussian noise to its counts, drawn by the system's generator and rounded; in a
secure sum of at least n clients, a share of 1 / n of its variance. A sample counts once in each histogram of the run.

Site j's samples count |S_j| times, so that the shares are those of the union and need no omega_j.
"""

from dataclasses import replace
from logging import getLogger
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from methods.method import Plan, Replies
from methods.pairwise import FedXSettings, PairwiseTask
from methods.predictions import FedXPool, FedXPredictions, FedXState, Predictions
from payloads.settings import TrainingSettings
from privacy.budget import noise_for
from problems.least_cell import Groups
from problems.randomness import secret_normal


def count_scores(x: Float[Tensor, "d"], task: PairwiseTask) -> FedXPredictions:
    """Count the scores of all samples of a site.

    Args:
        x: w, with which they are scored.
        task: has the samples, the score, and the number of bins.

    Returns:
        The counts, and no score.

    Raises:
        ValueError: a score is not finite, in a run without secure sums and without a budget.
    """
    model, site, (low, high) = task.f.model, task.site, bounds_of(task)
    if x.data_ptr() != model.parameters.data_ptr():
        model.parameters.copy_(x)
    scores = task.f.score.value(model.predict(site.features).double()).cpu().numpy()
    if not np.isfinite(scores).all():
        # an error would reveal something of one site, or of one row beyond the budget
        if task.summed == 1 and not task.settings.pool_epsilon:
            raise ValueError("a score is not finite: the run has diverged")
        getLogger("flwr").warning(
            "%d scores of this site are not finite: the run has diverged", (~np.isfinite(scores)).sum()
        )
        scores = np.nan_to_num(scores, nan=low, posinf=high, neginf=low)
    bins, none = task.settings.bins, np.zeros(0, task.training.dtype)
    positive = site.labels.cpu().numpy() > 0.5
    if site.least_cell > 1 and not task.settings.pool_epsilon:  # no row counts by itself
        for one in (positive, ~positive):
            groups = Groups.of(scores[one], site.least_cell)
            scores[one] = np.repeat(groups.centres, groups.sizes)
    places = np.clip(((scores - low) / (high - low) * bins).astype(np.int64), 0, bins - 1)
    counts = [np.bincount(places[one], minlength=bins).astype(np.int64) for one in (positive, ~positive)]
    if deviation := deviation_of(task.settings, task.training):
        share = max(deviation / np.sqrt(task.summed), 1.0)  # rounding would take away what is much smaller
        counts = [count + np.rint(share * secret_normal(bins)).astype(np.int64) for count in counts]
    return FedXPredictions(
        positive_scores=none, partner_scores=none, positive_counts=counts[0], negative_counts=counts[1]
    )


def deviation_of(settings: FedXSettings, training: TrainingSettings) -> float:
    """Return the standard deviation of the noise in a sum of counts; 0 without a budget.

    A run releases the histogram of its scoring round, and one in each round.
    """
    if not settings.pool_epsilon:
        return 0.0
    return noise_for(settings.pool_epsilon, settings.pool_delta, training.num_server_rounds + 1)


def bounds_of(task: PairwiseTask) -> tuple[float, float]:
    """Return the range of the scores, which the server has checked to have one."""
    assert task.f.score.bounds is not None
    return task.f.score.bounds


def collect_counts(state: FedXState, replies: Replies[FedXPredictions], plan: Plan[FedXSettings]) -> FedXState:
    """Add the sum of a round's counts to those of the last ``tau`` - 1 rounds.

    Args:
        state: after the round before.
        replies: of the round, or of the scoring round.
        plan: has ``tau``.
    """
    fresh = [sum(getattr(up, name) for up in replies.ups) for name in ("positive_counts", "negative_counts")]
    rounds = np.concatenate(fresh)[None]
    if state.recent is not None:
        rounds = np.concatenate([state.recent, rounds])[-plan.settings.tau :]
    deviation = deviation_of(plan.settings, plan.training)
    if not deviation:
        return replace(state, recent=rounds)
    before = 0.0 if state.precision is None else state.precision[0]
    return replace(state, recent=rounds, precision=np.array([before + deviation**-2]))


def add_counts(pool: FedXPool, state: FedXState) -> FedXPool:
    """Put the counts of the last rounds into what goes down."""
    assert state.recent is not None
    positives, negatives = np.split(state.recent.sum(axis=0), 2)
    return replace(pool, positive_counts=positives, negative_counts=negatives)


def fill_from_counts(task: PairwiseTask, pool: FedXPool, observe: Any) -> tuple[Predictions, Predictions]:
    """Make predictions of the histograms' bins.

    Args:
        task: has the score's range, and whether u is tracked.
        pool: what came down.
        observe: see `methods.fedx.observe`.

    Returns:
        The positives and the partners, on the site's device; of a class that nobody has, none.
    """
    (low, high), device = bounds_of(task), task.site.labels.device
    assert pool.positive_counts is not None
    assert pool.negative_counts is not None
    bins = len(pool.positive_counts)
    middles = low + (high - low) * (np.arange(bins) + 0.5) / bins

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
