"""A site's part in an evaluation on the rows that sites hold out, whatever the algorithm."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from clients.base import Site
from payloads.held_out import ScoreBins, ScoreCounts, ScoreMoments
from payloads.record import FloatArray
from problems.models import FlatModel


def score(
    model: FlatModel, parameters: Sequence[FloatArray], site: Site, bins: ScoreBins | None
) -> ScoreMoments | ScoreCounts:
    """The scores of a site's held-out rows under a model: their moments or, once there are bins, their counts.

    Raises:
        ValueError: scores that are not finite, or a site that holds out no rows.
    """
    rows = site.held_out
    if rows is None:
        raise ValueError(f"partition {site.partition_id} holds out no rows: the server evaluates on its own")
    model.load(parameters)
    logits = model.predict(rows.features)
    if not torch.isfinite(logits).all():
        raise ValueError("the global model's scores are not finite: the run has diverged; lower learning-rate")
    scores = logits.double().cpu().numpy()
    if bins is None:
        return ScoreMoments.of(scores)
    return ScoreCounts.of(bins.places(scores), rows.labels.cpu().numpy() > 0.5)
