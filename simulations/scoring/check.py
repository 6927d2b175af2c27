"""The check of an exported ONNX file: its scores of made-up rows must equal PyTorch's.

The rows are drawn from the statistics in the run directory, since the training rows are not available.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from problems.data.preprocessing import Feature, Preprocessing
from problems.data.samples import as_float32
from problems.models import FlatModel
from simulations.scoring.model import MEAN, PROBABILITY, SCORE, TrainedModel
from simulations.scoring.survival import RISK, SURVIVAL
from simulations.scoring.table import FEATURES, input_names, is_text, known_gaps

if TYPE_CHECKING:
    import pandas as pd

ROWS = 200


def difference_from(model: TrainedModel, content: bytes, *, pixels: bool) -> float:
    """Return the maximum difference of scores and probabilities between an ONNX file and PyTorch.

    Args:
        model: The PyTorch model.
        content: The bytes of the ONNX file.
        pixels: Whether the file's inputs are bytes.

    Returns:
        The difference, relative to the score for scores above 1, and to the mean for means above 1.
    """
    import onnxruntime

    rng = np.random.default_rng(0)
    shape = (ROWS, *model.sample_format.shape)
    if model.preprocessing is not None:
        frame, fed = make_rows(model.preprocessing, rng)
        features = model.preprocessing.features(frame)
    else:
        rows: NDArray[Any] = rng.normal(size=shape).astype(np.float32)
        if pixels:
            rows = rng.integers(256, size=shape).astype(np.uint8)
        features, fed = as_float32(rows), {FEATURES: rows}
    network = FlatModel(copy.deepcopy(model.network.module), dtype=model.network.dtype, outputs=model.network.outputs)
    wanted = network.predict(torch.from_numpy(features)).numpy()
    if model.preprocessing is not None and (offset := model.preprocessing.offset_column):
        wanted = wanted + fed[input_names(model.preprocessing)[offset]][:, 0]
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    if model.timed:
        expected = {RISK: wanted}
        if model.baseline is not None:
            expected[SURVIVAL] = model.baseline.survive(wanted)
    else:
        second = {MEAN: model.means(wanted)} if model.numeric else {PROBABILITY: model.calibration(wanted)}
        expected = {SCORE: wanted} | second
    pairs = zip(session.run(list(expected), fed), expected.values(), strict=True)
    return float(max((np.abs(got - exact) / np.maximum(1, np.abs(exact))).max() for got, exact in pairs))


def make_rows(table: Preprocessing, rng: np.random.Generator) -> tuple[pd.DataFrame, dict[str, NDArray[Any]]]:
    """Return made-up rows of a table, and the same rows as inputs of an ONNX file.

    Some cells are missing, unless the run's preprocessing forbids missing cells.
    """
    import pandas as pd

    frame, fed = dict[str, Any](), dict[str, NDArray[Any]]()
    for column, name in input_names(table).items():
        if column == table.offset_column:
            frame[column] = rng.normal(size=ROWS)
            fed[name] = frame[column][:, None]
            continue
        features = table.made_of(column)
        gaps = (rng.random(ROWS) < 0.1) & (table.missing != "error")
        count = int(gaps.sum())
        if is_text(table, column):
            words = [feature.value for feature in features if feature.kind == "category"]
            cells: NDArray[Any] = rng.choice([*words, "none of these"], ROWS).astype(object)
            cells[gaps] = rng.choice(["", *table.markers_of(column)], count)
        else:
            cells = _made_numbers(features, rng)
            cells[gaps] = rng.choice([np.nan, *known_gaps(table, column)], count)
        frame[column] = _dates(cells) if column in table.dates else cells
        fed[name] = cells[:, None]
    return pd.DataFrame(frame), fed


def _made_numbers(features: Sequence[Feature], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return numbers around a column's mean. For quantiles or bins: numbers on, between and outside their borders."""
    feature = features[0]
    if feature.kind == "boolean":
        return rng.integers(2, size=ROWS).astype(np.float64)
    if feature.transform in ("quantile", "bin"):
        knots = np.array(feature.quantiles or [bin_.high for bin_ in features if bin_.high is not None])
        between = rng.uniform(knots[0] - 1, knots[-1] + 1, ROWS)
        around = np.where(rng.random(ROWS) < 0.5, rng.choice(knots, ROWS), between)
    else:
        around = feature.mean + feature.deviation * rng.normal(size=ROWS)
    if feature.transform == "log":
        around = np.sign(around) * np.expm1(np.abs(around))
    return np.round(around * 24) / 24 if feature.kind == "date" else around


def _dates(days: NDArray[np.float64]) -> NDArray[np.datetime64]:
    """Return days since 1970-01-01 as dates to the second, which NumPy supports for any year."""
    dates = np.round(np.nan_to_num(days) * 86400).astype("datetime64[s]")
    dates[np.isnan(days)] = np.datetime64("NaT")
    return dates
