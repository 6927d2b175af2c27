"""A site's counts of several sets of held-out rows: the groups of a column, and all rows with a column permuted."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from clients.held_out import bin_scores, check_scores, find_rows
from payloads.held_out import BINS, OF_GROUPS, ScoreEdges, SetCounts
from payloads.record import FloatArray
from problems.binned_scores import first_edges
from problems.least_cell import is_small, suppress
from problems.models import FlatModel
from problems.randomness import stream
from problems.site import Site

PERMUTATION = "permutation importance"


def count_sets(
    model: FlatModel,
    parameters: Sequence[FloatArray],
    site: Site,
    question: ScoreEdges | None,
    phase: str,
    column: int,
    *,
    sets: int,
    seed: int = 0,
    summed: bool = False,
) -> tuple[SetCounts, bool]:
    """Count sets of a site's held-out rows by class and by bin of their score.

    A group of rows is withheld if a class of the group is smaller than the least cell, and further groups are withheld
    so differences reveal no such group either (`problems.least_cell.suppress`). Visible groups with a least cell above
    1 are counted as in `clients.held_out.score`. If a class has fewer rows than the least cell at the whole site,
    everything is withheld.

    Args:
        model: The network.
        parameters: The model's arrays.
        site: The site.
        question: The edges of the bins. None: `first_edges`.
        phase: An exchange of `payloads.held_out.OF_SETS`.
        column: The index of the column, of ``subgroups`` or of the table.
        sets: The number of the column's groups, or of repeats.
        seed: The run's seed, which determines the permutations.
        summed: See `clients.held_out.score`.

    Returns:
        The counts, and whether non-finite scores were replaced.

    Raises:
        DivergedScoresError: A score is not finite as float32.
        ValueError: The site has no such rows or no such column.
    """
    rows = find_rows(site, phase)
    labels = rows.labels.cpu().numpy() > 0.5
    edges = first_edges(BINS) if question is None else question.edges
    counts = np.zeros((2, sets, BINS), np.int32)
    withheld, replaced = np.ones(sets, np.int32), False
    model.load(parameters)

    def add(index: int, features: Tensor, chosen: Bool[np.ndarray, "n"]) -> bool:
        predicted = model.predict(features)
        if rows.offsets is not None:
            predicted = predicted + rows.offsets[torch.from_numpy(chosen).to(rows.offsets.device)]
        scores, altered = check_scores(predicted, summed=summed, least_cell=site.least_cell)
        counts[:, index] = bin_scores(scores, labels[chosen], edges, site.least_cell)
        return altered

    if phase in OF_GROUPS:
        if rows.subgroups is None or not 0 <= column < rows.subgroups.shape[1]:
            raise ValueError(f"partition {site.partition_id} has no column {column} of subgroups")
        masks = [rows.subgroups[:, column] == index for index in range(sets)]
        sizes = np.array([[np.count_nonzero(mask & (labels == side)) for side in (False, True)] for mask in masks])
        if is_small(sizes.sum(axis=0), site.least_cell):
            return _answer(counts, withheld), False
        hidden = suppress(sizes, site.least_cell)
        for index in np.flatnonzero(~hidden & (sizes.sum(axis=1) > 0)).tolist():
            features = rows.features[torch.from_numpy(np.flatnonzero(masks[index])).to(rows.features.device)]
            replaced |= add(index, features, masks[index])
        return _answer(counts, hidden.astype(np.int32)), replaced
    columns = column_indices(site.columns, rows.features)
    if not 0 <= column < len(columns):
        raise ValueError(f"partition {site.partition_id} has no column {column} to permute")
    if is_small([np.count_nonzero(labels == side) for side in (False, True)], site.least_cell):
        return _answer(counts, withheld), False
    everyone = np.ones(len(labels), dtype=bool)
    for repeat in range(sets):
        order = stream(seed, PERMUTATION, column, repeat, site.partition_id + 1).permutation(len(labels))
        replaced |= add(repeat, permute(rows.features, columns[column], order), everyone)
    return _answer(counts, np.zeros(sets, np.int32)), replaced


def column_indices(columns: Sequence[Sequence[int]], features: Tensor) -> Sequence[Sequence[int]]:
    """Return the indices of the features of each column.

    Args:
        columns: The known columns. Empty: each feature is a column.
        features: The features (n, *shape). Features of images have no columns.
    """
    return columns or ([(index,) for index in range(features.shape[1])] if features.dim() == 2 else [])


def permute(features: Tensor, column: Sequence[int], order: Int64[np.ndarray, "n"]) -> Tensor:
    """Return features in which the rows have exchanged the cells of a column.

    Args:
        features: The features (n, f).
        column: The indices of the column's features, which stay together.
        order: The row whose cells each row gets.
    """
    changed = features.clone()
    index = torch.tensor(list(column), device=features.device)
    changed[:, index] = features[torch.from_numpy(order).to(features.device)][:, index]
    return changed


def _answer(counts: Int64[np.ndarray, "2 sets bins"], withheld: Int64[np.ndarray, "sets"]) -> SetCounts:
    return SetCounts(negatives=counts[0].ravel(), positives=counts[1].ravel(), withheld=withheld)
