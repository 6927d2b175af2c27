"""The exchanges in which sites count their held-out rows by class and score, for one label or for several findings."""

from collections.abc import Sequence
from logging import INFO

import numpy as np
from flwr.common import log
from jaxtyping import Int32, Int64

from methods.checks import check_both_classes
from payloads.held_out import BINS, OF_FINDINGS, SCORE_COUNTS, FindingCounts, FindingEdges, ScoreCounts, ScoreEdges
from payloads.record import FloatArray, Payload
from payloads.wire import model_record
from problems.binned_scores import TOLERANCES, bounds, first_edges, refine
from problems.tallies import Tally
from strategies.method import MethodStrategy
from strategies.rounds.errors import raise_setup
from strategies.rounds.replies import count_rows

EXCHANGES = 4
"""The maximum number of exchanges. Many equal scores need the most, and close scores far from 0."""


def count_scores(
    strategy: MethodStrategy,
    server_round: int,
    arrays: list[FloatArray],
    phase: str = SCORE_COUNTS,
    fixed_edges: Sequence[Sequence[int]] = ((),),
    names: Sequence[str] = (),
) -> list[Tally]:
    """Ask the sites for counts of their held-out rows, by class and by bin of the score under a model.

    At most `EXCHANGES` exchanges refine the bins, until AUC and average precision are known within `TOLERANCES`. With
    secure sums there is a single exchange, and the counts are totals over the sites.

    Args:
        strategy: The run's strategy.
        server_round: The round.
        arrays: The model.
        phase: The rows to count, an element of `payloads.held_out.EVALUATIONS`.
        fixed_edges: For each finding (without findings for the only label), scores that must be edges of bins, as codes
            of `problems.binned_scores`.
        names: The names of the findings, for errors.

    Returns:
        The counts of each finding; without findings one element.

    Raises:
        StrategyError: Fewer than ``min-train-nodes`` sites answer.
        SetupError: The held-out rows of the sites that answer are all of one class.
    """
    clients, record = list(range(len(strategy.roster))), model_record(arrays)
    edges = [first_edges(BINS, fixed) for fixed in fixed_edges]
    plain = first_edges(BINS)
    asked: list[Int32[np.ndarray, edges]] | None = None
    if any(not np.array_equal(each, plain) for each in edges):
        asked = edges
    # a client that drops out between two sums would be revealed: their difference is its counts
    exchanges = 1 if (summed := strategy.privacy.secure_sum) else EXCHANGES
    strategy.sets = len(edges) if phase in OF_FINDINGS else 0
    try:
        for exchange in range(exchanges):
            replies = strategy.ask(server_round, clients, record, _write_question(asked, phase), phase)
            clients = [reply.client for reply in replies]
            counts = np.stack([_read_counts(edges, reply.payload) for reply in replies])  # (sites, 2, findings, bins)
            total = counts.sum(axis=0)
            unknown = np.array([bounds(own, total[0, j], total[1, j]) for j, own in enumerate(edges)])
            if (unknown <= TOLERANCES).all():
                break
            if exchange == exchanges - 1:
                text = "round %d: counts of scores determine AUC to within %.4f, average precision to within %.4f"
                log(INFO, text, server_round, *unknown.max(axis=0))
                break
            edges = asked = [
                own if (unknown[j] <= TOLERANCES).all() else refine(own, total[0, j], total[1, j], fixed_edges[j])
                for j, own in enumerate(edges)
            ]
    finally:
        strategy.sets = 0
    tallies = []
    for j, own in enumerate(edges):
        key = f"round {server_round}: the sites' held-out rows{f' of {names[j]}' if names else ''}"
        negatives, positives = total[:, j].sum(axis=1).tolist()
        with raise_setup():
            check_both_classes(key, negatives, positives, "metrics need both")
        tally = Tally.of_bins(own, counts[:, 0, j], counts[:, 1, j], tuple(clients))
        tallies.append(tally.total() if summed else tally)
    return tallies


def _write_question(edges: Sequence[Int32[np.ndarray, "edges"]] | None, phase: str) -> Payload | None:
    if edges is None:
        return None
    return FindingEdges(edges=np.stack(edges)) if phase in OF_FINDINGS else ScoreEdges(edges=edges[0])


def _read_counts(edges: Sequence[Int32[np.ndarray, "edges"]], payload: Payload) -> Int64[np.ndarray, "2 findings bins"]:
    """Return the numbers of negatives and positives in a site's answer, by finding and bin."""
    if isinstance(payload, FindingCounts):
        return np.array(payload.by_finding(), np.int64)
    assert isinstance(payload, ScoreCounts)
    return np.array(count_rows(edges[0], payload), np.int64)[:, None]
