"""A site's counts of its held-out rows by interval of time, class and score, for runs with times to an event."""

from collections.abc import Sequence

import numpy as np

from clients.held_out import check_scores, find_rows, predict
from payloads.held_out import TIME_BINS, TimeCounts
from payloads.record import FloatArray
from problems.binned_scores import RISK_EDGES, find_bins
from problems.least_cell import is_small
from problems.models import FlatModel
from problems.site import Site


def count_times(
    model: FlatModel, parameters: Sequence[FloatArray], site: Site, phase: str, *, summed: bool = False
) -> tuple[TimeCounts, bool]:
    """Count a site's held-out rows.

    Most counts are 0 or 1. A site with a least cell above 1 therefore counts only in a secure sum, from which the
    server does not learn the site of a row. If a class has fewer rows than the least cell, nothing is counted.

    Args:
        model: The network.
        parameters: The model's arrays.
        site: The site.
        phase: An exchange of `payloads.held_out.OF_TIMES`.
        summed: Whether the server sees only a sum over sites, see `clients.held_out.score`.

    Returns:
        The counts, and whether non-finite scores were replaced.

    Raises:
        DivergedScoresError: A score is not finite as float32.
        ValueError: The site has no such rows, its rows have no times, or it protects small cells without a secure sum.
    """
    rows, label = find_rows(site, phase), f"partition {site.partition_id}"
    if rows.periods is None:
        raise ValueError(f"{label} has no times")
    if site.least_cell > 1 and not summed:
        raise ValueError(f"{label} has a least-cell above 1, so it counts rows by time only in a secure sum")
    labels = (rows.labels > 0.5).cpu().numpy().astype(np.int64)
    cells = np.zeros((rows.periods.num_intervals, 2, TIME_BINS), dtype=np.int32)
    if is_small(np.bincount(labels, minlength=2), site.least_cell):
        return TimeCounts(counts=cells.ravel()), False
    scores, replaced = check_scores(predict(model, parameters, rows), summed=summed, least_cell=site.least_cell)
    np.add.at(cells, (rows.periods.exits, labels, find_bins(scores, RISK_EDGES)), 1)
    return TimeCounts(counts=cells.ravel()), replaced
