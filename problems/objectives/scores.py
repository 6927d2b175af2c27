"""The score of a sample in a loss: the model's raw output, or a bounded function of it. `condense` summarises scores.

`condense` replaces each cell of neighbouring scores by three weighted scores with the same number, mean and variance.
docs/run-directory.md ("The risk in an evaluation") has the weights and bounds.
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
    """Replace many scores by fewer weighted scores.

    Up to ``9 * cells`` scores are not changed. Borders cut the rows into ``cells`` equal parts, and also the range of
    the scores, so a cell has at most 1 / ``cells`` of the rows and of the range. The ``cells`` widest gaps between
    scores are borders, too, so outliers get separate cells.

    Args:
        scores: Finite scores, in float64.
        cells: The number of parts. With more parts there are more scores and a smaller error.

    Returns:
        At most ``9 * cells`` scores, and for each the number of original scores that it replaces.
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
    relative = (ranked - np.repeat(low, counts)) / np.repeat(np.where(width > 0, width, 1.0), counts)  # in [0, 1]
    mu = np.add.reduceat(relative, starts) / counts
    variance = np.add.reduceat((relative - np.repeat(mu, counts)) ** 2, starts) / counts
    max_variance = mu * (1 - mu)
    theta = np.divide(variance, max_variance, out=np.zeros_like(mu), where=max_variance > 0).clip(max=1.0)
    nodes = np.concatenate((low, low + mu * width, high))
    numbers = np.concatenate((theta * (1 - mu), 1 - theta, theta * mu)) * np.tile(counts, _SCORES_A_CELL)
    used = numbers > 0
    return torch.tensor(nodes[used], device=scores.device), torch.tensor(numbers[used], device=scores.device)


def condensed_classes(
    scores: Float[Tensor, "n"], labels: Float[Tensor, "n"] | None, cells: int = CELLS
) -> tuple[Float[Tensor, "few"], Float[Tensor, "few"], Float[Tensor, "few"] | None]:
    """Condense the scores of each class separately.

    Args:
        scores: See `condense`.
        labels: 0 or 1 for each score. None: all scores belong to one class.
        cells: The number of parts for each class, see `condense`.

    Returns:
        The condensed scores, their weights in a mean over them, and their labels.
    """
    classes = [scores] if labels is None else [scores[labels == y] for y in (0, 1)]
    few, numbers = zip(*(condense(own, cells) for own in classes), strict=True)
    if labels is not None:
        labels = torch.cat([torch.full_like(own, y) for y, own in enumerate(few)])
    return torch.cat(few), torch.cat(numbers) * (sum(map(len, few)) / len(scores)), labels
