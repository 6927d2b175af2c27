"""The interval of the difference of two runs' AUCs over their test rows: other test rows would give another difference.

If both runs have the same rows at the server, their saved models score these rows, and the interval is DeLong's for
paired scores. With times to an event the metric is the concordance, and the interval the infinitesimal jackknife's
(`problems.survival.paired`). Sites reveal only counts of scores of each model, not which row has which two scores. The
interval then follows from the two models' separate intervals, as if the rows were different (G. Y. Zou and A. Donner,
"Construction of confidence limits about effect measures", Statistics in Medicine 27, 2008). Two models that rank the
same rows similarly differ less, so this interval is too wide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file

from apps.config import RunConfig, parse_run_config
from apps.evaluation.models import ModelEvaluator, RowEvaluation
from apps.sites import resources
from problems.data import OWN, Samples
from problems.delong import PairedDifference, paired_difference
from problems.intervals import AUC
from problems.survival.paired import compare_concordances
from simulations.results.board import CONCORDANCE
from simulations.results.output import Table
from simulations.results.paired import format_signed
from simulations.results.records import FINISHED, RunRecord
from simulations.results.survival_board import read_survival

PAIRED, UNPAIRED = "paired, DeLong", "not paired, too wide"
PAIRED_TIMES = "paired, jackknife"
# the metrics with an interval over rows
COMPARED = (AUC, CONCORDANCE)
# runs beyond this number are searches, whose comparison would take minutes
MAX_RUNS = 10
# keys of the data on which neither the test rows nor their order depend
_OF_TABLES = ("feature_columns", "drop_columns", "scale", "bins", "borders", "missing", "missing_values")
_OF_FEATURES = (*_OF_TABLES, "pixel_bits", "image_size", "precise")
_OF_STATISTICS = ("subgroups",)
_OF_TRAINING = ("imbalance", "label_noise", "client_shift", "client_shift_std", "partition_alpha", "partition_classes")
_ROUNDING = 1e-6


@dataclass(frozen=True)
class RowDifference:
    """The AUC of a run minus the AUC of the first run; with times to an event, their concordances.

    Attributes:
        run, first: The names of the runs.
        value, low, high: The difference, and its 95 % interval over test rows. None: a class has one row.
        method: `PAIRED`, `PAIRED_TIMES` or `UNPAIRED`.
        metric: The metric.
    """

    run: str
    first: str
    value: float
    low: float | None
    high: float | None
    method: str
    metric: str = AUC


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """The rows of a run at the server, and their scores under the run's final model."""

    config: RunConfig
    rows: Samples
    scores: NDArray[np.float64]

    def has_same_rows(self, other: ScoredRows) -> bool:
        """Return whether another run has the same rows in the same order."""
        free = {*_OF_FEATURES, *_OF_STATISTICS, *_OF_TRAINING}
        keys = [key.name for key in fields(self.config.data) if key.name not in free]
        mine, theirs = self.config.data, other.config.data
        same = all(getattr(mine, key) == getattr(theirs, key) for key in keys)
        same = same and np.array_equal(self.rows.labels, other.rows.labels)
        if all(getattr(mine, key) == getattr(theirs, key) for key in _OF_FEATURES):
            same = same and np.array_equal(self.rows.features, other.rows.features)
        own, periods = self.rows.periods, other.rows.periods
        if own is None or periods is None:
            return same and own is periods
        return same and np.array_equal(own.exits, periods.exits) and np.array_equal(own.entries, periods.entries)

    def compare(self, reference: NDArray[np.float64]) -> PairedDifference:
        """Return the difference of the metric from other scores of the same rows."""
        if self.rows.periods is None:
            return paired_difference(self.rows.labels, self.scores, reference)
        periods = self.rows.periods
        return compare_concordances(periods.exits, self.rows.labels, self.scores, reference, periods.entries)


def compare_rows(runs: Sequence[RunRecord], metric: str = AUC) -> list[RowDifference]:
    """Return the difference of each run from the first run.

    Runs without a result, runs that neither can score their rows again nor have an interval of the metric, and runs
    with several labels for each row have no difference.

    Args:
        runs: The runs. No differences for more than `MAX_RUNS` runs.
        metric: A metric of `COMPARED`.
    """
    single = [run for run in runs if not run.config.get("label-columns")]
    finished = [run for run in single if run.status == FINISHED and math.isfinite(run.metrics.get(metric, math.nan))]
    if len(finished) < 2 or len(runs) > MAX_RUNS:
        return []
    first, *further = finished
    reference = score_again(first)
    found = (_difference(run, first, reference, metric) for run in further)
    return [difference for difference in found if difference is not None]


def tabulate(differences: Sequence[RowDifference]) -> Table:
    """Return differences as a table for people."""
    rows = [
        [
            difference.run,
            (format_signed(difference.value, 1.0), difference.value),
            "-"
            if difference.low is None
            else f"{format_signed(difference.low, 1.0)} to {format_signed(difference.high, 1.0)}",
            difference.method,
        ]
        for difference in differences
    ]
    metric = differences[0].metric
    caption = f"{metric} minus {metric} of {differences[0].first}, with an interval over test rows"
    return Table(caption, ["run", "difference", "95 % interval", "interval"], rows)


def score_again(run: RunRecord) -> ScoredRows | None:
    """Score the rows on which a run was measured with the run's final model.

    Args:
        run: A finished run.

    Returns:
        The rows and scores. None if the rows are at the sites, the data or the model cannot be read any more, or the
        scores do not have the AUC that the run has recorded.
    """
    try:
        config = parse_run_config(run.config)
        if config.data.partition == OWN or not isinstance(config.algorithm.evaluation, RowEvaluation):
            return None
        data = resources.federated_data(config.data, int(run.facts["clients"] or 1))
        rows = data.test if "test_metrics" in run.result else data.evaluated
        evaluator = ModelEvaluator(config, resources.new_model(config, rows.shape), rows)
        name = "model_best" if "selected" in run.result else "model"
        logits = evaluator.scores(evaluator.start_from(load_file(run.path / f"{name}.safetensors")))[1]
    except (OSError, ValueError, RuntimeError):
        return None
    scores = logits.cpu().numpy().astype(np.float64)
    scored = ScoredRows(config, rows, scores)
    recorded = run.metrics[AUC if rows.periods is None else CONCORDANCE]
    return scored if abs(scored.compare(np.zeros(len(scores))).value + 0.5 - recorded) <= _ROUNDING else None


def _difference(run: RunRecord, first: RunRecord, reference: ScoredRows | None, metric: str) -> RowDifference | None:
    scored = None if reference is None else score_again(run)
    if scored is not None and reference is not None and scored.has_same_rows(reference):
        gap, method = scored.compare(reference.scores), PAIRED if metric == AUC else PAIRED_TIMES
        return RowDifference(run.name, first.name, gap.value, gap.low, gap.high, method, metric)
    figure, other = _read_figure(run, metric), _read_figure(first, metric)
    if figure is None or other is None:
        return None
    gap = unpaired_difference(figure, other)
    return RowDifference(run.name, first.name, gap.value, gap.low, gap.high, UNPAIRED, metric)


def _read_figure(run: RunRecord, metric: str) -> Sequence[float] | None:
    """Return a run's metric and the ends of its interval. None: the run does not have them."""
    if metric == AUC:
        figure: Sequence[float] | None = run.result.get("all", {}).get(AUC)
        return figure
    found = read_survival(run).get("concordance")
    return None if found is None or None in found else found


def unpaired_difference(figure: Sequence[float], reference: Sequence[float]) -> PairedDifference:
    """Return the difference of two numbers that are estimated from different rows.

    Args:
        figure: The first number and the ends of its 95 % interval.
        reference: The second number, which is subtracted, and the ends of its interval.

    Example:
        >>> gap = unpaired_difference([0.8, 0.7, 0.9], [0.7, 0.6, 0.8])
        >>> round(gap.value, 3), round(gap.low, 3), round(gap.high, 3)
        (0.1, -0.041, 0.241)
    """
    (value, low, high), (other, other_low, other_high) = figure, reference
    gap = value - other
    return PairedDifference(
        gap, gap - math.hypot(value - low, other_high - other), gap + math.hypot(high - value, other - other_low)
    )
