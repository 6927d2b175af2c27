"""Scores, to within a bin, of the rows that sites hold out; the server evaluates on them if it has no test set."""

from __future__ import annotations

from logging import INFO

import numpy as np
from flwr.common import log
from numpy.typing import NDArray

from payloads.held_out import BINS, SCORE_COUNTS, ScoreCounts, ScoreEdges
from payloads.record import FloatArray
from payloads.wire import model_record
from problems.binned_scores import TOLERANCES, bounds, expanded, first_edges, refined
from strategies.base import PayloadStrategy
from strategies.rounds.errors import SetupError

# Most are needed by equal scores of many rows, and by scores far from 0 that differ little.
EXCHANGES = 4


def held_out_scores(
    strategy: PayloadStrategy, server_round: int, arrays: list[FloatArray]
) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
    """(n,) labels and (n,) scores of all sites' held-out rows under a model, each score moved to its bin's middle.

    Bins are refined until AUC and average precision are known within `TOLERANCES`, in at most `EXCHANGES` exchanges.

    Raises:
        StrategyError: fewer than ``min-train-nodes`` answer.
        SetupError: those that answer hold out one class only.
    """
    assert strategy.roster is not None
    places, record = list(range(len(strategy.roster))), model_record(arrays)
    edges, question = first_edges(BINS), None
    for exchange in range(EXCHANGES):
        replies = strategy.ask(server_round, places, record, question, SCORE_COUNTS)
        counts: list[ScoreCounts] = [reply.payload for reply in replies]
        places = [reply.place for reply in replies]
        negatives = np.sum([count.negatives for count in counts], axis=0, dtype=np.int64)
        positives = np.sum([count.positives for count in counts], axis=0, dtype=np.int64)
        unknown = bounds(edges, negatives, positives)
        if (np.array(unknown) <= TOLERANCES).all():
            break
        if exchange == EXCHANGES - 1:
            told = "round %d: counts of scores tell AUC to within %.4f, average precision to within %.4f"
            log(INFO, told, server_round, *unknown)
            break
        edges = refined(edges, negatives, positives)
        question = ScoreEdges(edges=edges)
    if not negatives.any() or not positives.any():
        raise SetupError(
            f"round {server_round}: the rows that the sites hold out",
            got=f"{int(positives.sum())} positives and {int(negatives.sum())} negatives",
            allowed="both classes, since metrics need both",
            hint="set positive-label, or bring more rows",
        )
    return expanded(edges, negatives, positives)
