"""The exchange in which sites count several sets of their held-out rows, for statistics at the end of a run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, Int64

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
    counts = [reply.payload.by_set() for reply in replies]
    negatives, positives = (np.sum([each[side] for each in counts], axis=0, dtype=np.int64) for side in (0, 1))
    withheld = np.sum([reply.payload.withheld for reply in replies], axis=0)
    pairs: list[tuple[Int64[np.ndarray, bins], Int64[np.ndarray, bins]]] = list(zip(negatives, positives, strict=True))
    tallies = [Tally.of_bins(edges, below[None], above[None]) for below, above in pairs]
    return CountedSets(tallies, withheld.tolist(), [bounds(edges, *pair)[0] for pair in pairs])
