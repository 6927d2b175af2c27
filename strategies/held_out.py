"""Scores of the rows that sites hold out, up to a bin: what the server evaluates on where it has no test set."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from payloads.held_out import SCORE_COUNTS, SCORE_MOMENTS, ScoreBins, ScoreCounts, ScoreMoments
from payloads.record import FloatArray
from payloads.wire import model_record
from strategies.base import PayloadStrategy
from strategies.replies import pooled_moments
from strategies.roster import SetupError


def held_out_scores(
    strategy: PayloadStrategy, server_round: int, arrays: list[FloatArray]
) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
    """(n,) labels and (n,) scores of all sites' held-out rows under a model, each score moved to its bin's middle.

    Raises:
        SetupError: fewer than ``min-train-nodes`` answer, or those who do hold out one class only.
    """
    assert strategy.roster is not None
    places, record = range(len(strategy.roster)), model_record(arrays)
    replies = strategy.ask(server_round, places, record, None, SCORE_MOMENTS)
    moments: list[ScoreMoments] = [reply.payload for reply in replies]
    bins = bins_of(moments)
    replies = strategy.ask(server_round, [reply.place for reply in replies], record, bins, SCORE_COUNTS)
    counts: list[ScoreCounts] = [reply.payload for reply in replies]
    negatives = np.sum([count.negatives for count in counts], axis=0)
    positives = np.sum([count.positives for count in counts], axis=0)
    if not negatives.any() or not positives.any():
        raise SetupError(
            f"round {server_round}: the rows that the sites hold out",
            got=f"{int(positives.sum())} positives and {int(negatives.sum())} negatives",
            allowed="both classes, since metrics need both",
            hint="set positive-label, or bring more rows",
        )
    labels = np.repeat(np.array([0, 1], dtype=np.int8), [negatives.sum(), positives.sum()])
    centres = bins.centres()
    return labels, np.concatenate([np.repeat(centres, negatives), np.repeat(centres, positives)])


def bins_of(moments: list[ScoreMoments]) -> ScoreBins:
    """Bins that are fine where the scores of all sites are. Scores that are all equal get bins of width about 1/500."""
    counts = np.array([moment.count[0] for moment in moments], dtype=np.float64)
    means = np.array([moment.mean[0] for moment in moments], dtype=np.float64)
    variances = np.array([moment.variance[0] for moment in moments], dtype=np.float64)
    mean, variance = pooled_moments(counts, means, variances)
    deviation = np.sqrt(variance)
    return ScoreBins(mean=np.array([mean]), deviation=np.array([deviation if deviation > 0 else 1.0]))
