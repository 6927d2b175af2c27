"""New rows from files: read for a trained model, scored, evaluated, and their scores written."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from problems.data import DataError
from problems.data.dialect import Dialect
from problems.data.formats.new_rows import NewRows, read_array_rows, read_table_rows
from problems.data.formats.tables import read_columns
from problems.metrics import Interval, scored_metrics
from simulations.results.target import is_scores, write_output
from simulations.scoring.model import PROBABILITY, SCORE, TrainedModel

if TYPE_CHECKING:
    import pandas as pd

FILE = "file"


def read_rows(model: TrainedModel, path: Path) -> NewRows:
    """Read the rows of a file or folder, of the kind that the model scores.

    Raises:
        DataError: It is of another kind, or cannot be read.
    """
    path = path.expanduser()
    if model.preprocessing is not None:
        return read_table_rows(path, model.label_column, model.preprocessing.words, Dialect.of(model.config.data))
    return read_array_rows(path, model.sample_format.shape, model.config.data, model.sample_format.pixel_max)


def score_file(model: TrainedModel, path: Path, keep: Sequence[str] = ()) -> pd.DataFrame:
    """Score the rows of a file or folder.

    Args:
        model: Scores them.
        path: Of the rows.
        keep: Columns of the table to take over.

    Returns:
        One row for each, in their order: the kept columns, of images ``file``, and ``score`` and ``probability``.

    Raises:
        DataError: The rows cannot be read or scored, or lack a column to keep.
    """
    import pandas as pd

    rows = read_rows(model, path)
    kept = _keep(path.expanduser(), rows, keep, Dialect.of(model.config.data))
    scores = model.decision_function(rows.features)
    return pd.DataFrame({**kept, SCORE: scores, PROBABILITY: model.probabilities(scores)[:, 1]})


def _keep(path: Path, rows: NewRows, names: Sequence[str], dialect: Dialect) -> dict[str, Any]:
    """The columns beside the scores; those of a csv file as they are written there, such as an id with zeros before."""
    if not names:
        return {} if rows.files is None else {FILE: rows.files}
    there = [str(name) for name in getattr(rows.features, "columns", [])]
    lacking = [name for name in names if name not in there]
    taken = [name for name in names if name in (SCORE, PROBABILITY)]
    if lacking or taken:
        got = f"no column {', '.join(lacking)}" if lacking else f"{', '.join(taken)}, which is a column of the scores"
        names_there = f"{', '.join(there[:30])}{', ...' if len(there) > 30 else ''}"
        allowed = f"columns of {path.name}: {names_there}" if there else "nothing, where NEW is no table"
        raise DataError("--keep", got=got, allowed=allowed, hint="choose others, or leave it out")
    frame = read_columns(path, names, dialect)
    return {name: frame[name].to_numpy() for name in names}


def write_scores(scores: pd.DataFrame, out: Path, new: Path) -> None:
    """Write a table of scores as csv, packed if the name ends in .gz.

    Args:
        scores: The table.
        out: The file to write.
        new: The file or folder of the rows, which stays as it is.

    Raises:
        ConfigError: The file cannot be written, is the file of the rows, or exists and is not a table of scores.
    """
    target, content = out.expanduser(), io.BytesIO()
    scores.to_csv(content, index=False, compression="gzip" if target.suffix == ".gz" else None)
    write_output(target, content.getvalue(), partial(is_scores, columns=list(scores.columns)), [new])


@dataclass(frozen=True)
class Measured:
    """How well a model does on labelled rows.

    Attributes:
        run, model: Which it is.
    positive_labels: The original labels that count as positive.
        rows, positives: their numbers.
        threshold: the least score that counts as positive in ``accuracy``.
        resamples, confidence, seed: of the intervals; see `problems.metrics.scored_metrics`.
        metrics: by name.
    """

    run: str
    model: str
    positive_labels: tuple[str, ...]
    rows: int
    positives: int
    threshold: float
    resamples: int
    confidence: float
    seed: int
    metrics: dict[str, Interval]


def evaluate_file(
    model: TrainedModel, path: Path, *, resamples: int = 1000, confidence: float = 0.95, seed: int = 0
) -> Measured:
    """Measure a model on the labelled rows of a file or folder.

    Args:
        model: Scores them.
        path: Of the rows.
        resamples: As of `problems.metrics.scored_metrics`.
        confidence: Likewise.
        seed: Likewise.

    Raises:
        DataError: The rows cannot be read or scored, have no labels, or not those of the training.
        ValueError: Only one class is there.
    """
    rows = read_rows(model, path)
    if rows.labels is None:
        table = model.preprocessing is not None
        wanted = f"column {model.label_column!r}" if table else "class folders, or an array y"
        allowed = f"{wanted}, since metrics need labels"
        raise DataError(path, got="rows without labels", allowed=allowed, hint="add them, or take `predict`")
    labels = model.sample_format.encode_labels(np.asarray(rows.labels))
    scores = model.decision_function(rows.features)
    likely, called = model.probabilities(scores)[:, 1], scores.astype(np.float64) >= model.threshold
    metrics = scored_metrics(labels, scores, likely, called, resamples=resamples, confidence=confidence, seed=seed)
    counts = len(labels), int(labels.sum())
    positive = model.sample_format.positive_labels
    return Measured(
        model.record.name, model.chosen, positive, *counts, model.threshold, resamples, confidence, seed, metrics
    )
