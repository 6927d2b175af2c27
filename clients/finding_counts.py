"""A site's counts of its held-out rows by finding, value and score, for runs whose rows have several labels."""

from collections.abc import Sequence

import numpy as np

from clients.held_out import bin_scores, check_scores, find_rows, predict
from payloads.held_out import BINS, FindingCounts, FindingEdges
from payloads.record import FloatArray
from problems.binned_scores import first_edges
from problems.models import FlatModel
from problems.site import Site


def count_findings(
    model: FlatModel,
    parameters: Sequence[FloatArray],
    site: Site,
    question: FindingEdges | None,
    phase: str,
    *,
    summed: bool = False,
) -> tuple[FindingCounts, bool]:
    """Count the held-out rows in which each finding is known, by its value and by bin of its score.

    With a least cell above 1, each finding's rows of a value are put into groups, and the scores of each group are
    spread evenly, as in `clients.held_out.bin_scores`. Findings with few rows are unknown, see
    `problems.data.findings.Findings.without_small_cells`.

    Args:
        model: The network.
        parameters: The model's arrays.
        site: The site.
        question: The edges of each finding's bins. None: `first_edges`.
        phase: An exchange of `payloads.held_out.OF_FINDINGS`.
        summed: Whether the server sees only a sum over sites, see `clients.held_out.score`.

    Returns:
        The counts, and whether non-finite scores were replaced.

    Raises:
        DivergedScoresError: A score is not finite as float32.
        ValueError: The site has no such rows, its rows have one label, or the question has another number of findings.
    """
    rows = find_rows(site, phase)
    findings = rows.findings
    assert findings is not None
    number = len(findings.names)
    edges = [first_edges(BINS)] * number if question is None else question.edges
    if len(edges) != number:
        raise ValueError(f"partition {site.partition_id} got edges of {len(edges)} findings, expected {number}")
    scores = predict(model, parameters, rows)
    counts, replaced = np.zeros((2, number, BINS), np.int32), False
    for index in range(number):
        known = findings.known[:, index]
        own, altered = check_scores(scores[known, index], summed=summed, least_cell=site.least_cell)
        ones = findings.values[known, index] == 1
        counts[:, index] = bin_scores(own, ones, edges[index], site.least_cell)
        replaced |= altered
    return FindingCounts(negatives=counts[0].ravel(), positives=counts[1].ravel()), replaced
