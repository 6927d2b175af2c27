"""A table's preprocessing in PyTorch operators, in float64 as `problems.data.preprocessing` computes it.

PyTorch has no texts: a text is its index among `known_texts`, or -1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from problems.data.cells import is_number
from problems.data.preprocessing import MOST_DEVIATIONS, Feature, Preprocessing
from simulations.scoring.model import PROBABILITY, SCORE

FEATURES = "features"


def input_names(preprocessing: Preprocessing) -> dict[str, str]:
    """Return each raw column's input of a file: its name, except if an output has the name."""
    return {name: f"{name} (column)" if name in (SCORE, PROBABILITY) else name for name in preprocessing.columns}


def is_text(preprocessing: Preprocessing, column: str) -> bool:
    """Return whether the cells of a raw column are texts; otherwise they are numbers."""
    return column in preprocessing.words


def known_texts(preprocessing: Preprocessing, column: str) -> list[str]:
    """Return the texts of a raw column that the model knows, the texts of missing cells first."""
    listed = [feature.value for feature in preprocessing.made_of(column) if feature.kind == "category"]
    return list(dict.fromkeys(["", *preprocessing.markers_of(column), *listed]))


def known_gaps(preprocessing: Preprocessing, column: str) -> list[float]:
    """Return the numbers of a raw column that mean a missing cell, in addition to NaN."""
    is_date = column in preprocessing.dates
    return [float(marker) for marker in preprocessing.markers_of(column) if is_number(marker) and not is_date]


def table_features(preprocessing: Preprocessing, columns: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the features (n, f) of a table's rows, and which rows (n,) have a missing cell.

    Args:
        preprocessing: The run's preprocessing.
        columns: The cells (n, 1) of each of its raw columns, as numbers. A missing number is NaN.
    """
    order, blocks, gaps = list[Feature](), [], []
    for column, cells in zip(preprocessing.columns, columns, strict=True):
        features = preprocessing.made_of(column)
        if is_text(preprocessing, column):
            known, missing = known_texts(preprocessing, column), {"", *preprocessing.markers_of(column)}
            gap = (cells >= 0) & (cells < len(missing))
            numbers = _match(cells, [known.index(one.value) if one.kind == "category" else -2 for one in features])
        else:
            gap = torch.isnan(cells)
            for number in known_gaps(preprocessing, column):
                gap = gap | (cells == number)
            numbers = _find_bins(cells, features) if features[0].transform == "bin" else cells
        filled = torch.where(gap, _row([feature.fill for feature in features]), numbers.double())
        marks = [one for one in preprocessing.outputs if one.column == column and one.kind == "missing"]
        order += features + marks
        blocks += [_shape(filled, features[0]), *[gap.double()] * len(marks)]
        gaps.append(gap)
    scaled = _scale(torch.cat(blocks, dim=1), order)
    places = {feature: place for place, feature in enumerate(order)}
    return scaled[:, [places[feature] for feature in preprocessing.outputs]].float(), torch.cat(gaps, dim=1).any(dim=1)


def _match(texts: torch.Tensor, listed: Sequence[int]) -> torch.Tensor:
    """Which of the listed texts the cells (n, 1) are, (n, k); in the place of a negative number: none of them."""
    listed_row = torch.tensor([listed])
    hits = texts == listed_row
    return hits | (~hits.any(dim=1, keepdim=True) & (listed_row < 0))


def _find_bins(numbers: torch.Tensor, bins: Sequence[Feature]) -> torch.Tensor:
    """Which of the bins the numbers (n, 1) are in, (n, k)."""
    low, high = zip(*(one.bounds for one in bins), strict=True)
    return (numbers > _row(low)) & (numbers <= _row(high))


def _row(numbers: ArrayLike) -> torch.Tensor:
    """Numbers as a row (1, k)."""
    return torch.from_numpy(np.array([numbers], dtype=np.float64))


def _shape(numbers: torch.Tensor, feature: Feature) -> torch.Tensor:
    """Filled numbers (n, k) as `problems.data.preprocessing.shape` returns them."""
    match feature.transform:
        case "log":
            return torch.sign(numbers) * torch.log1p(torch.abs(numbers))
        case "quantile":
            return _level(numbers, np.array(feature.quantiles))
    return numbers


def _level(numbers: torch.Tensor, knots: NDArray[np.float64]) -> torch.Tensor:
    """The levels of numbers (n, 1) among quantiles: a sum of ramps between quantiles, and of steps at equal ones."""
    levels = np.arange(1, len(knots) + 1) / (len(knots) + 1)
    distinct, first, counts = np.unique(knots, return_index=True, return_counts=True)
    below, above = levels[first], levels[first + counts - 1]
    offset, width = numbers - _row(distinct), np.diff(distinct)
    steps = torch.sign(offset) * _row((above - below) / 2)  # half of each step is added to the middle, or subtracted
    level: torch.Tensor = steps.sum(dim=1, keepdim=True) + (below[0] + (above - below).sum() / 2)
    if not len(width):
        return level
    ramps = torch.clamp(offset[:, :-1], _row(np.zeros(len(width))), _row(width))
    climbed: torch.Tensor = (ramps * _row((below[1:] - above[:-1]) / width)).sum(dim=1, keepdim=True)
    return level + climbed


def _scale(numbers: torch.Tensor, features: Sequence[Feature]) -> torch.Tensor:
    """Shaped numbers (n, f) as `Feature.scale` standardises them."""
    mean, deviation = np.array([(feature.mean, feature.deviation) for feature in features]).T
    bound = np.where(deviation == 0, 0.0, MOST_DEVIATIONS)
    bound[(mean == 0) & (deviation == 1)] = np.finfo(np.float64).max
    divided = (numbers - _row(mean)) / _row(np.where(deviation == 0, 1.0, deviation))
    return torch.clamp(divided, _row(-bound), _row(bound))
