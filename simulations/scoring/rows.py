"""The commands ``predict`` and ``evaluate`` on files: new rows are read, scored or measured, and scores are written."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from problems.calibration import IDENTITY
from problems.data import DataError, DataSpec
from problems.data.cells import without_markers
from problems.data.dialect import Dialect
from problems.data.findings import Findings, make_findings, mark_classes, read_findings
from problems.data.formats.new_rows import NewRows, read_array_rows, read_table_rows
from problems.data.formats.tables import read_columns
from problems.data.outcomes import check_counts, read_numbers
from problems.data.samples import label_classes
from problems.errors import join_first
from problems.finding_metrics import finding_intervals
from problems.metrics import Interval, scored_metrics
from problems.number_metrics import number_intervals
from problems.objectives.number_losses import POISSON
from simulations.results.target import Map, is_scores, write_output
from simulations.scoring.model import MEAN, PREDICTED, PROBABILITY, SCORE, TrainedModel
from simulations.scoring.survival import RISK, measure_times, name_column, need_baseline, survive
from simulations.scoring.thresholds import Threshold

if TYPE_CHECKING:
    import pandas as pd

FILE = "file"
# From the rows' table, their features (n, f) and their scores (n,), the further columns of a table of scores.
Further = Callable[[Any, NDArray[np.float32], NDArray[Any]], dict[str, Any]]


def read_rows(model: TrainedModel, path: Path) -> NewRows:
    """Read the rows of a file or folder in the form that the model scores.

    Raises:
        DataError: The file has another form, or cannot be read.
    """
    path = path.expanduser()
    if model.preprocessing is not None:
        return read_table_rows(path, model.label_column, model.preprocessing.words, Dialect.of(model.config.data))
    return read_array_rows(path, model.sample_format, model.config.data)


def score_file(
    model: TrainedModel,
    path: Path,
    keep: Sequence[str] = (),
    threshold: Threshold | None = None,
    further: Sequence[Further] = (),
    times: Sequence[float] = (),
) -> pd.DataFrame:
    """Score the rows of a file or folder.

    Args:
        model: The model.
        path: The file or folder.
        keep: The columns of the table to copy.
        threshold: The threshold of the column ``predicted``. None: no such column.
        further: Functions that make further columns of scored rows.
        times: The times of the columns of survival, if rows have times.

    Returns:
        A table with one row for each scored row, in the same order. Its columns are the copied columns, for images
        ``file``, and ``score`` and ``probability``, ``predicted`` with a threshold, and the further columns. If the
        labels are numbers: ``score``, ``mean`` and the further columns. If rows have times: ``risk_score``,
        ``survival_t`` for each time, and the further columns. If rows have findings: ``score_NAME``,
        ``probability_NAME`` and, with a threshold, ``predicted_NAME`` of each finding. With the loss "softmax" also
        ``predicted``, the most probable class.

    Raises:
        ConfigError: A function refuses the model.
        DataError: The rows cannot be read or scored, or lack a column to keep.
    """
    import pandas as pd

    rows = read_rows(model, path)
    copied = _copy_columns(path.expanduser(), rows, keep, Dialect.of(model.config.data))
    features = model.features(rows.features)
    scores = model.scores_of(features, model.offsets(rows.features))
    if model.numeric:
        computed = {SCORE: scores, MEAN: model.means(scores)}
    elif model.timed:
        survival = survive(need_baseline(model), scores.astype(np.float64), times).T if times else ()
        computed = {RISK: scores, **dict(zip(map(name_column, times), survival, strict=True))}
    elif model.findings:
        computed = {}
        likely = model.calibration(scores)
        parts = {SCORE: scores, PROBABILITY: likely}
        parts |= {} if threshold is None else {PREDICTED: threshold.predict(scores, likely)}
        for index, name in enumerate(model.findings):
            computed |= {f"{part}_{name}": columns[:, index] for part, columns in parts.items()}
        computed |= {PREDICTED: model.most_probable(scores)} if model.exclusive else {}
    else:
        likely = model.calibration(scores)
        computed = {SCORE: scores, PROBABILITY: likely}
        if threshold is not None:
            computed[PREDICTED] = threshold.predict(scores, likely)
    for make in further:
        computed |= make(rows.features, np.asarray(features), scores)
    if taken := [name for name in copied if name in computed]:
        got, allowed = f"{', '.join(taken)}, which is a column of the scores", f"other columns of {path.name}"
        raise DataError("--keep", got=got, allowed=allowed, hint="choose other columns, or remove --keep")
    return pd.DataFrame({**copied, **computed})


def _copy_columns(path: Path, rows: NewRows, names: Sequence[str], dialect: Dialect) -> dict[str, Any]:
    """Return the columns to copy. Cells of csv files stay texts, so ids keep their leading zeros."""
    if not names:
        return {} if rows.files is None else {FILE: rows.files}
    columns = [str(name) for name in getattr(rows.features, "columns", [])]
    lacking = [name for name in names if name not in columns]
    if lacking:
        listed = join_first(columns, 30)
        allowed = f"columns of {path.name}: {listed}" if columns else "no columns, since NEW is not a table"
        raise DataError(
            "--keep",
            got=f"no column {', '.join(lacking)}",
            allowed=allowed,
            hint="choose other columns, or remove --keep",
        )
    frame = read_columns(path, names, dialect)
    return {name: frame[name].to_numpy() for name in names}


def write_scores(
    scores: pd.DataFrame, out: Path, new: Path, maps: Sequence[Map] = (IDENTITY,), derived: int = 1
) -> None:
    """Write a table of scores as csv, compressed if the name ends in .gz.

    Args:
        scores: The table.
        out: The file to write.
        new: The file or folder of the rows, which must not be overwritten.
        maps: The maps of an earlier output from scores to probabilities or means, see `is_scores`.
        derived: The number of columns after the scores that follow from them.

    Raises:
        ConfigError: The file cannot be written, is the file of the rows, or exists and is not a table of scores.
    """
    target, content = out.expanduser(), io.BytesIO()
    scores.to_csv(content, index=False, compression="gzip" if target.suffix == ".gz" else None)
    recognize = partial(is_scores, columns=list(scores.columns), maps=maps, derived=derived)
    write_output(target, content.getvalue(), recognize, [new])


@dataclass(frozen=True)
class Measured:
    """A model's metrics on labelled rows.

    Attributes:
        run, model: The names of the run and the model.
        positive_labels: The original labels that count as positive. Empty if the labels are numbers or findings.
        rows, positives: The numbers of rows and of positives, or of events. None positives if the labels are numbers or
            findings.
        threshold: The minimum score that counts as positive in ``accuracy``. None if labels are numbers, times or
            findings.
        resamples, confidence, seed: The parameters of the intervals, see `problems.metrics.scored_metrics`.
        metrics: The metrics by name.
    """

    run: str
    model: str
    positive_labels: tuple[str, ...]
    rows: int
    positives: int | None
    threshold: float | None
    resamples: int
    confidence: float
    seed: int
    metrics: dict[str, Interval]


def evaluate_file(
    model: TrainedModel, path: Path, *, resamples: int = 1000, confidence: float = 0.95, seed: int = 0
) -> Measured:
    """Measure a model on the labelled rows of a file or folder.

    Args:
        model: The model.
        path: The file or folder.
        resamples: The number of bootstrap resamples, see `problems.metrics.scored_metrics` and
            `problems.survival.intervals.time_intervals`.
        confidence: The confidence level of the intervals.
        seed: The seed of the resamples.

    Raises:
        DataError: The rows cannot be read or scored, or have no labels or other labels than the training.
        ValueError: The rows have a single class, or predictions are not finite.
    """
    rows = read_rows(model, path)
    if model.findings:
        return _measure_findings(model, path, rows, resamples, confidence, seed)
    if rows.labels is None:
        table = model.preprocessing is not None
        wanted = f"column {model.label_column!r}" if table else "class folders, or an array y"
        allowed = f"{wanted}, since metrics need labels"
        raise DataError(path, got="rows without labels", allowed=allowed, hint="add labels, or use `predict`")
    options: dict[str, Any] = {"resamples": resamples, "confidence": confidence, "seed": seed}
    if model.numeric:
        numbers = read_labels(model, rows.labels)
        scores = model.decision_function(rows.features)
        measured = number_intervals(model.config.training.loss, numbers, scores, **options)
        return Measured(
            model.record.name, model.chosen, (), len(numbers), None, None, resamples, confidence, seed, measured
        )
    labels = model.sample_format.encode_labels(np.asarray(rows.labels))
    scores = model.decision_function(rows.features)
    if model.timed:
        timed = measure_times(model, rows.features, labels, scores.astype(np.float64), **options)
        counts, positive = (len(labels), int(labels.sum())), model.sample_format.positive_labels
        return Measured(model.record.name, model.chosen, positive, *counts, None, resamples, confidence, seed, timed)
    threshold = float(model.threshold)
    likely, called = model.calibration(scores), scores.astype(np.float64) >= threshold
    metrics = scored_metrics(labels, scores, likely, called, **options)
    counts = len(labels), int(labels.sum())
    positive = model.sample_format.positive_labels
    return Measured(model.record.name, model.chosen, positive, *counts, threshold, resamples, confidence, seed, metrics)


def _measure_findings(
    model: TrainedModel, path: Path, rows: NewRows, resamples: int, confidence: float, seed: int
) -> Measured:
    """Measure a model of findings, see `evaluate_file`."""
    import pandas as pd

    spec, features = model.config.data, rows.features
    if isinstance(features, pd.DataFrame):
        lacking = [name for name in spec.label_sources if name not in features.columns]
        if lacking:
            hint = "add these columns, or use `predict`"
            got = f"no column {', '.join(map(repr, lacking))}"
            raise DataError(path, got=got, allowed="the columns of the labels", hint=hint)
        columns = [without_markers(features[name], ()) for name in spec.label_sources]
        findings = read_findings(columns, spec) if spec.has_matrix else _mark_labels(columns[0].to_numpy(), spec)
    elif rows.labels is None:
        raise DataError(path, got="rows without labels", allowed="an array y", hint="add labels, or use `predict`")
    elif (labels := np.asarray(rows.labels)).ndim == 1:
        findings = _mark_labels(labels, spec)
    else:
        findings = make_findings(labels, model.findings, spec)
    findings.check(np.arange(len(findings)), str(path))
    if model.exclusive:
        findings.check_exclusive()
    scores = model.decision_function(features)
    thresholds = np.asarray(model.threshold).tolist()
    options: dict[str, Any] = {"resamples": resamples, "confidence": confidence, "seed": seed}
    metrics = finding_intervals(findings, scores, thresholds, exclusive=model.exclusive, **options)
    name, count = model.record.name, len(findings)
    return Measured(name, model.chosen, (), count, None, None, resamples, confidence, seed, metrics)


def _mark_labels(labels: NDArray[Any], spec: DataSpec) -> Findings:
    """Return the findings of labels (n,) that are classes."""
    return mark_classes(*label_classes(labels), spec.findings)


def read_labels(model: TrainedModel, labels: NDArray[Any]) -> NDArray[np.float64]:
    """Return the labels of new rows as numbers.

    Args:
        model: The model, whose labels are numbers.
        labels: The cells of the label column (n,).

    Raises:
        DataError: A cell is not a finite number, or the model predicts counts and a number is below 0.
    """
    import pandas as pd

    column = pd.Series(labels, name=model.label_column)
    numbers = read_numbers(without_markers(column, ()))
    if model.config.training.loss == POISSON:
        check_counts(numbers, model.label_column)
    return numbers
