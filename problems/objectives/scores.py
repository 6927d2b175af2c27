"""The score of a sample in a loss: the model's raw output or a bounded function of it; and a summary of many scores.

The summary replaces each cell of neighbouring scores by three weighted scores with the same number, mean and variance.
docs/fedx.md ("The risk in an evaluation") has the weights and bounds.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

CELLS = 256
_SCORES_A_CELL, _BORDERS_A_CELL = 3, 3


class Score(NamedTuple):
    """A kind of score.

    Attributes:
        value: The map from raw outputs to scores.
        slope: The map from scores to their derivatives in the raw outputs.
        bounds: The range of all scores; None if it is infinite.
    """

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    bounds: tuple[float, float] | None = None


SCORES = {
    "logit": Score(lambda output: output, torch.ones_like),
    "sigmoid": Score(torch.sigmoid, lambda score: score * (1 - score), (0.0, 1.0)),
    "tanh": Score(torch.tanh, lambda score: 1 - score**2, (-1.0, 1.0)),
}


def score_of(setting: str, auto: str) -> Score:
    """Return the score that a setting names.

    Args:
        setting: A key of `SCORES`, or "auto".
        auto: The key that "auto" means.
    """
    return SCORES[auto if setting == "auto" else setting]


def condense(scores: Float[Tensor, "n"], cells: int = CELLS) -> tuple[Float[Tensor, "few"], Float[Tensor, "few"]]:
    """Replace many scores by few.

    Up to ``9 * cells`` scores are not changed. Borders cut the rows, and the range of scores, into ``cells`` parts,
    so a cell has at most 1 / ``cells`` of both. The ``cells`` widest gaps are borders too, so outliers get separate
    cells.

    Args:
        scores: Finite scores, in float64.
        cells: The number of parts; more parts leave more scores and a smaller error.

    Returns:
        At most ``9 * cells`` scores, and the number of original scores that each stands for.
    """
    if len(scores) <= _SCORES_A_CELL * _BORDERS_A_CELL * cells:
        return scores, torch.ones_like(scores)
    ranked = np.sort(scores.cpu().numpy())
    shares = np.arange(cells) * len(ranked) // cells
    widths = np.searchsorted(ranked, np.linspace(ranked[0], ranked[-1], cells, endpoint=False))
    gaps = np.argpartition(np.diff(ranked), -cells)[-cells:] + 1
    starts = np.unique(np.concatenate((shares, widths, gaps)))
    counts = np.diff(np.append(starts, len(ranked)))
    low, high = ranked[starts], ranked[starts + counts - 1]
    width = high - low
    place = (ranked - np.repeat(low, counts)) / np.repeat(np.where(width > 0, width, 1.0), counts)  # in [0, 1]
    mu = np.add.reduceat(place, starts) / counts
    variance = np.add.reduceat((place - np.repeat(mu, counts)) ** 2, starts) / counts
    most = mu * (1 - mu)
    theta = np.divide(variance, most, out=np.zeros_like(most), where=most > 0).clip(max=1.0)
    nodes = np.concatenate((low, low + mu * width, high))
    numbers = np.concatenate((theta * (1 - mu), 1 - theta, theta * mu)) * np.tile(counts, _SCORES_A_CELL)
    there = numbers > 0
    return torch.tensor(nodes[there], device=scores.device), torch.tensor(numbers[there], device=scores.device)


def condensed_classes(
    scores: Float[Tensor, "n"], labels: Float[Tensor, "n"] | None, cells: int = CELLS
) -> tuple[Float[Tensor, "few"], Float[Tensor, "few"], Float[Tensor, "few"] | None]:
    """Condense scores class by class; return the scores, their weights in a mean over them, and their labels.

    Args:
        scores: See `condense`.
        labels: 0 or 1 for each score; None if all belong to one class.
        cells: See `condense`; applies to each class.
    """
    classes = [scores] if labels is None else [scores[labels == y] for y in (0, 1)]
    few, numbers = zip(*(condense(one, cells) for one in classes), strict=True)
    if labels is not None:
        labels = torch.cat([torch.full_like(one, y) for y, one in enumerate(few)])
    return torch.cat(few), torch.cat(numbers) * (sum(map(len, few)) / len(scores)), labels
