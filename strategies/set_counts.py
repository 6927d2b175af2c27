"""The exchange in which sites count several sets of their held-out rows, for statistics at the end of a run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from payloads.held_out import BINS, COLUMN, ScoreEdges
from payloads.record import FloatArray
from payloads.wire import model_record
from problems.binned_scores import bounds, first_edges
from problems.tallies import Tally
from strategies.method import MethodStrategy


@dataclass(frozen=True, eq=False)
class CountedSets:
    """Sets of rows of all sites together.

    Attributes:
        tallies: The counted scores of each set.
        withheld: For each set, the number of sites that do not reveal their rows of the set.
        errors: For each set, the largest error of its AUC because of the bins.
    """

    tallies: list[Tally]
    withheld: list[int]
    errors: list[float]


def count_sets(
    strategy: MethodStrategy,
    server_round: int,
    arrays: Sequence[FloatArray],
    phase: str,
    column: int,
    edges: Int[np.ndarray, "edges"],
    sets: int,
) -> CountedSets:
    """Ask the sites for counts of sets of their held-out rows, by class and by bin of the score under a model.

    Args:
        strategy: The run's strategy.
        server_round: The round.
        arrays: The model.
        phase: An exchange of `payloads.held_out.OF_SETS`.
        column: The index of the column.
        edges: The edges of the bins, as codes.
        sets: The number of sets.

    Raises:
        StrategyError: Fewer than ``min-train-nodes`` sites answer.
    """
    question = None if np.array_equal(edges, first_edges(BINS)) else ScoreEdges(edges=edges.astype(np.int32))
    strategy.sets = sets
    try:
        clients, record = list(range(len(strategy.roster))), model_record(list(arrays))
        replies = strategy.ask(server_round, clients, record, question, phase, {COLUMN: column})
    finally:
        strategy.sets = 0
    negatives, positives = (
        np.stack([reply.payload.by_set()[side] for reply in replies]).sum(axis=0, dtype=np.int64) for side in (0, 1)
    )
    withheld = np.stack([reply.payload.withheld for reply in replies]).sum(axis=0)
    tallies = [Tally.of_bins(edges, negatives[[index]], positives[[index]]) for index in range(sets)]
    errors = [bounds(edges, negatives[index], positives[index])[0] for index in range(sets)]
    return CountedSets(tallies, withheld.tolist(), errors)
