"""A table's preprocessing in PyTorch operators, for the export to ONNX, in float64 as in `problems.data.preprocessing`.

PyTorch has no texts, so a text is its index in `known_texts`, or -1 for an unknown text. The same operators compute all
columns, so a wide table needs no more operators than a narrow table.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
import torch
from numpy.typing import ArrayLike

from problems.data.cells import is_number
from problems.data.preprocessing import MAX_DEVIATIONS, Feature, Preprocessing
from simulations.scoring.model import MEAN, PROBABILITY, SCORE
from simulations.scoring.survival import RISK, SURVIVAL

FEATURES = "features"


def input_names(preprocessing: Preprocessing) -> dict[str, str]:
    """Return the name of each raw column's input in an ONNX file.

    It is the column's name, followed by ``(column)`` if an output has the same name. The offset's column is the last.
    """
    columns = (*preprocessing.columns, *([preprocessing.offset_column] if preprocessing.offset_column else []))
    outputs = (RISK, SURVIVAL) if preprocessing.time_column else (SCORE, PROBABILITY, MEAN)
    return {name: f"{name} (column)" if name in outputs else name for name in columns}


def is_text(preprocessing: Preprocessing, column: str) -> bool:
    """Return whether the cells of a raw column are texts and not numbers."""
    return column in preprocessing.words


def known_texts(preprocessing: Preprocessing, column: str) -> list[str]:
    """Return the known texts of a raw column, with the texts of missing cells first."""
    listed = [feature.value for feature in preprocessing.made_of(column) if feature.kind == "category"]
    return list(dict.fromkeys(["", *preprocessing.markers_of(column), *listed]))


def known_gaps(preprocessing: Preprocessing, column: str) -> list[float]:
    """Return the numbers that mark a missing cell of a raw column, in addition to NaN."""
    is_date = column in preprocessing.dates
    return [float(marker) for marker in preprocessing.markers_of(column) if is_number(marker) and not is_date]


def table_features(preprocessing: Preprocessing, cells: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the (n, f) features of a table's rows, and the (n,) mask of rows with a missing cell.

    Args:
        preprocessing: The run's preprocessing.
        cells: The (n, c) cells of its raw columns, as float64 numbers. A missing number is NaN.
    """
    columns, features = preprocessing.columns, preprocessing.outputs
    texts = [is_text(preprocessing, column) for column in columns]
    blanks = [len({"", *preprocessing.markers_of(name)}) * text for name, text in zip(columns, texts, strict=True)]
    gaps = torch.isnan(cells) | ((cells >= 0) & (cells < _row(blanks)))
    markers = [[] if text else known_gaps(preprocessing, name) for name, text in zip(columns, texts, strict=True)]
    for row in zip_longest(*markers, fillvalue=np.nan):
        gaps = gaps | (cells == _row(row))
    source = [columns.index(feature.column) for feature in features]
    low, high = np.array([_bounds(preprocessing, feature) for feature in features]).T
    numbers = cells[:, source]
    inside = ((numbers > _row(low)) & (numbers <= _row(high))).double()
    values = torch.where(torch.from_numpy(np.isnan(low)), numbers, inside)
    fills = [1.0 if feature.kind == "missing" else feature.fill for feature in features]
    filled = torch.where(gaps[:, source], _row(fills), values)
    return _scale(_shape(filled, features), features).float(), gaps.any(dim=1)


def _bounds(preprocessing: Preprocessing, feature: Feature) -> tuple[float, float]:
    """Return the interval (low, high] in which a feature is 1; NaN for a feature that is the number itself."""
    match feature.kind:
        case "category":
            index = known_texts(preprocessing, feature.column).index(feature.value)
            return index - 0.5, index + 0.5
        case "other":
            return -1.5, -0.5
        case "missing":
            return np.inf, np.inf
    return feature.bounds if feature.transform == "bin" else (np.nan, np.nan)


def _row(numbers: ArrayLike) -> torch.Tensor:
    """Return numbers as a row (1, k)."""
    return torch.from_numpy(np.array([numbers], dtype=np.float64))


def _shape(numbers: torch.Tensor, features: Sequence[Feature]) -> torch.Tensor:
    """Return filled numbers (n, f) as `problems.data.preprocessing.shape` does."""
    for name, function in (("log", _logarithm), ("quantile", _level)):
        chosen = [feature.transform == name for feature in features]
        if any(chosen):
            numbers = torch.where(torch.tensor(chosen), function(numbers, features), numbers)
    return numbers


def _logarithm(numbers: torch.Tensor, features: Sequence[Feature]) -> torch.Tensor:
    return torch.sign(numbers) * torch.log1p(torch.abs(numbers))


def _level(numbers: torch.Tensor, features: Sequence[Feature]) -> torch.Tensor:
    """Return numbers' levels among their feature's quantiles: a ramp or a step between neighbouring quantiles."""
    quantiles = [feature.quantiles or (0.0,) for feature in features]
    # features with fewer quantiles are padded with ramps at infinity, which are always 0
    starts = np.array(list(zip_longest(*(levels[:-1] for levels in quantiles), fillvalue=np.inf))).T
    widths = np.array(list(zip_longest(*map(np.diff, quantiles), fillvalue=1.0))).T
    counts = np.array([len(levels) for levels in quantiles])
    if not starts.size:
        return torch.zeros_like(numbers) + _row(1 / (counts + 1))
    offset = numbers.unsqueeze(2) - torch.from_numpy(starts)  # (n, f, k)
    ramps = torch.clamp(offset / torch.from_numpy(np.where(widths > 0, widths, 1.0)), 0.0, 1.0)
    steps = (torch.sign(offset) + 1) / 2
    passed = torch.where(torch.from_numpy(widths > 0), ramps, steps).sum(dim=2)
    return (1 + passed) / _row(counts + 1)


def _scale(numbers: torch.Tensor, features: Sequence[Feature]) -> torch.Tensor:
    """Return shaped numbers (n, f), standardised like `Feature.scale`."""
    mean, deviation = np.array([(feature.mean, feature.deviation) for feature in features]).T
    bound = np.where(deviation == 0, 0.0, MAX_DEVIATIONS)
    bound[(mean == 0) & (deviation == 1)] = np.finfo(np.float64).max
    divided = (numbers - _row(mean)) / _row(np.where(deviation == 0, 1.0, deviation))
    return torch.clamp(divided, _row(-bound), _row(bound))
