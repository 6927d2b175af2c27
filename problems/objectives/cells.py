"""Many scores replaced by few: three weighted scores per cell of neighbours keep its number, mean and variance.

A cell's lowest score, mean and highest score weigh theta (1 - mu), 1 - theta and theta mu. Here mu is the position of
the mean between the ends, 0 to 1, and theta = variance / ((highest - mean)(mean - lowest)) is at most 1 (R. Bhatia and
C. Davis, "A better bound on the variance", American Mathematical Monthly 107, 2000). So no weight is negative, and

- no row's score moves by more than w, the cell's width;
- the mean of a function g over the cell is unchanged if g is quadratic there. Else it moves by at most w^3 / 96 times
  the largest third derivative, and by at most w^2 / 8 times the largest second one; if g is convex, by at most w / 4
  times the change of g' over the cell.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

CELLS = 256
_SCORES_A_CELL, _BORDERS_A_CELL = 3, 3


def condensed(scores: Tensor, cells: int = CELLS) -> tuple[Tensor, Tensor]:
    """At most 9 ``cells`` float64 scores, and how many of the (n,) finite scores each stands for.

    Up to 9 ``cells`` scores stay as they are. Borders cut the rows, and the range of scores, into ``cells`` equal
    parts, so that a cell has at most 1 / ``cells`` of both. The ``cells`` widest gaps are borders too, so that outliers
    get cells of their own.
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
    scores: Tensor, labels: Tensor | None, cells: int = CELLS
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Scores that are `condensed` class by class, their weights in a mean over them, and their labels.

    Args:
        labels: (n,) 0 or 1 for each score; None where all are of one class.
    """
    classes = [scores] if labels is None else [scores[labels == y] for y in (0, 1)]
    few, numbers = zip(*(condensed(one, cells) for one in classes), strict=True)
    if labels is not None:
        labels = torch.cat([torch.full_like(one, y) for y, one in enumerate(few)])
    return torch.cat(few), torch.cat(numbers) * (sum(map(len, few)) / len(scores)), labels
