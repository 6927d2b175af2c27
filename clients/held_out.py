"""A site's part in an evaluation on the rows that sites hold out, whatever the algorithm."""

from __future__ import annotations

from collections.abc import Sequence

from clients.base import Site
from payloads.held_out import BINS, ScoreCounts, ScoreEdges
from payloads.record import FloatArray
from problems.binned_scores import codes, first_edges, places
from problems.models import FlatModel


def score(model: FlatModel, parameters: Sequence[FloatArray], site: Site, asked: ScoreEdges | None) -> ScoreCounts:
    """How many of the site's held-out rows have scores in which bin under a model: the first bins, or those asked for.

    Raises:
        ValueError: scores that are not finite as float32, or a site that holds out no rows.
    """
    rows = site.held_out
    if rows is None:
        raise ValueError(f"partition {site.partition_id} holds out no rows: the server evaluates on its own")
    model.load(parameters)
    try:
        scores = codes(model.predict(rows.features).cpu().numpy())
    except ValueError as error:
        raise ValueError(f"the global model's scores: {error}: the run has diverged, its steps are too large") from None
    bins = places(scores, first_edges(BINS) if asked is None else asked.edges)
    return ScoreCounts.of(bins, rows.labels.cpu().numpy() > 0.5)
