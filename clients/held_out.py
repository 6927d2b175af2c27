"""A site's part of the evaluation on held-out rows, for any algorithm: it counts the rows by class and score.

If labels are numbers, it adds up errors over the rows instead.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from payloads.held_out import (
    BINS,
    OF_FINDINGS,
    OF_TEST_ROWS,
    SCORE_COUNTS,
    SUMS,
    ErrorDigits,
    GroupCounts,
    ScoreCounts,
    ScoreEdges,
)
from payloads.record import FloatArray, IntArray, not_finite
from problems.binned_scores import codes, find_bins, first_edges, scores_of
from problems.least_cell import Groups, is_small
from problems.models import FlatModel
from problems.number_metrics import sum_errors
from problems.site import Site

_DIVERGED = "the global model's scores are not finite: the run has diverged, its steps are too large"


class DivergedScoresError(ValueError):
    """An error: scores of a site's rows are not finite. The text does not reveal the number of rows."""


def score(
    model: FlatModel,
    parameters: Sequence[FloatArray],
    site: Site,
    question: ScoreEdges | None,
    phase: str = SCORE_COUNTS,
    *,
    summed: bool = False,
) -> tuple[ScoreCounts, bool]:
    """Count a site's held-out rows by class and by bin of their score under a model, for any algorithm.

    With a least cell above 1, groups of rows are counted (see `problems.least_cell`). If a class has fewer rows than
    the least cell, nothing is counted.

    Args:
        model: The network.
        parameters: The model's arrays.
        site: The site.
        question: The edges of the bins. None: `first_edges`.
        phase: The rows to count: `SCORE_COUNTS`, or `payloads.held_out.TEST_SCORE_COUNTS` for the test rows if the
            held-out rows are validation rows.
        summed: Whether the server sees only a sum over sites. Non-finite scores then become 0 or the largest numbers,
            since an error would reveal a fact about one site to the server, which chooses the model. The site also
            converts its groups to single scores, since the server cannot do so from a sum.

    Returns:
        The counts, and whether non-finite scores were replaced.

    Raises:
        DivergedScoresError: A score is not finite as float32.
        ValueError: The site has no such rows.
    """
    rows = find_rows(site, phase)
    labels, least_cell = rows.labels.cpu().numpy() > 0.5, site.least_cell
    positives = int(labels.sum())
    if is_small((len(labels) - positives, positives), least_cell):
        return ScoreCounts.of(np.zeros(0, np.int64), np.zeros(0, bool)), False
    scores, replaced = check_scores(predict(model, parameters, rows), summed=summed, least_cell=least_cell)
    edges = first_edges(BINS) if question is None else question.edges
    if least_cell == 1 or summed:
        negatives, positive = bin_scores(scores, labels, edges, least_cell)
        return ScoreCounts(negatives=negatives, positives=positive), replaced
    groups = [Groups.of(scores_of(scores[labels == side]), least_cell) for side in (False, True)]
    return count_groups(groups[0], groups[1], edges), replaced


def find_rows(site: Site, phase: str) -> Site:
    """Return the rows that an exchange counts.

    Args:
        site: The site.
        phase: An exchange of `payloads.held_out.EVALUATIONS`.

    Raises:
        ValueError: The site has no such rows, or the exchange is for other labels.
    """
    rows = site.test if phase in OF_TEST_ROWS else site.held_out
    if rows is None:
        kind = "has no test rows" if phase in OF_TEST_ROWS else "has no held-out rows"
        raise ValueError(f"partition {site.partition_id} {kind}: the server evaluates on its own")
    if (rows.findings is None) == (phase in OF_FINDINGS):
        raise ValueError(f"partition {site.partition_id} does not answer {phase!r}, which is for other labels")
    return rows


def predict(model: FlatModel, parameters: Sequence[FloatArray], rows: Site) -> Tensor:
    """Return the scores of rows, with their offsets.

    Args:
        model: The network.
        parameters: The model's arrays.
        rows: The rows.
    """
    model.load(parameters)
    scores = model.predict(rows.features)
    return scores if rows.offsets is None else scores + rows.offsets


def check_scores(predicted: Tensor, *, summed: bool, least_cell: int) -> tuple[IntArray, bool]:
    """Return scores as codes of `problems.binned_scores`.

    Args:
        predicted: The model's scores.
        summed: Whether non-finite scores are replaced, see `score`.
        least_cell: Fewer non-finite scores than this are replaced too: an error would reveal a fact about single rows.

    Returns:
        The codes, and whether scores were replaced.

    Raises:
        DivergedScoresError: A score is not finite as float32, and is not replaced.
    """
    with np.errstate(over="ignore"):
        values = predicted.cpu().numpy().astype(np.float32)
    bad = not_finite(values)
    replaced = bad > 0 and (summed or bad < least_cell)
    try:
        return codes(np.nan_to_num(values) if replaced else values), replaced
    except ValueError as error:
        raise DivergedScoresError(_DIVERGED) from error


def bin_scores(
    scores: IntArray, labels: NDArray[np.bool_], edges: IntArray, least_cell: int
) -> tuple[IntArray, IntArray]:
    """Count rows by class and bin. With a least cell above 1, the scores of groups of rows are spread evenly first.

    Args:
        scores: The rows' scores, as codes.
        labels: Whether each row is positive. Each class has no rows, or at least as many as the least cell.
        edges: The edges of the bins.
        least_cell: The site's least cell.
    """
    if least_cell > 1:
        groups = [Groups.of(scores_of(scores[labels == side]), least_cell) for side in (False, True)]
        spread = [codes(group.spread()) for group in groups]
        labels = np.repeat([False, True], [len(part) for part in spread])
        scores = np.concatenate(spread)
    counts = ScoreCounts.of(find_bins(scores, edges), labels)
    return counts.negatives, counts.positives


def measure_errors(
    model: FlatModel,
    parameters: Sequence[FloatArray],
    site: Site,
    loss: str,
    phase: str = SCORE_COUNTS,
    *,
    summed: bool = False,
) -> tuple[ErrorDigits, bool]:
    """Add up the errors of a model on a site's held-out rows, whose labels are numbers.

    A site with fewer rows than its least cell sends zeros.

    Args:
        model: The network.
        parameters: The model's arrays.
        site: The site.
        loss: The run's loss, of `NUMBER_LOSSES`.
        phase: As in `score`.
        summed: Whether the server sees only a sum over sites. If a sum is not finite, the site then sends the sums of a
            model whose scores are all 0, since an error would reveal a fact about one site.

    Returns:
        The sums, and whether they were replaced.

    Raises:
        DivergedScoresError: A sum is not finite.
        ValueError: The site has no such rows.
    """
    rows = find_rows(site, phase)
    if is_small(len(rows), site.least_cell):
        return ErrorDigits.of([0.0] * SUMS), False
    labels = rows.labels.cpu().double().numpy()
    try:
        return ErrorDigits.of(sum_errors(loss, labels, predict(model, parameters, rows).cpu().numpy())), False
    except ValueError as error:
        if not summed:
            raise DivergedScoresError(_DIVERGED) from error
        return ErrorDigits.of(sum_errors(loss, labels, np.zeros(len(rows)))), True


def count_groups(negatives: Groups, positives: Groups, edges: IntArray) -> GroupCounts:
    """Count groups of rows by the bins of their centres.

    Args:
        negatives: The groups of negatives.
        positives: The groups of positives.
        edges: The edges of the bins.
    """
    binned = [group.at(find_bins(codes(group.centres), edges), BINS) for group in (negatives, positives)]
    (negative, negative_spreads), (positive, positive_spreads) = binned
    return GroupCounts(
        negatives=negative,
        positives=positive,
        negative_spreads=negative_spreads,
        positive_spreads=positive_spreads,
    )
