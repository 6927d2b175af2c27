"""The scores of a finished run or reference on the rows that evaluate all references, and their metrics."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from apps.config import parse_run_config
from apps.evaluation.models import ModelEvaluator
from apps.evaluation.times import TimeEvaluator
from apps.sites import resources
from problems.data import Preprocessing, Samples
from problems.delong import PairedDifference, paired_difference
from problems.survival.concordance import spread
from problems.survival.paired import compare_concordances, derive_rows
from simulations.results.records import RunRecord


def score_rows(run: RunRecord, test: Samples) -> NDArray[np.float64] | None:
    """Return the scores of rows by a run's final model. None: the model has no scores.

    Args:
        run: The run.
        test: The rows.
    """
    config = parse_run_config(run.config)
    if resources.is_problem(config):
        return None
    evaluator = ModelEvaluator(config, resources.new_model(config, test.shape), test)
    scores: NDArray[np.float64] = evaluator.predict(evaluator.start_from(_read_weights(run))).cpu().numpy()
    return scores.astype(np.float64)


def measure_times(run: RunRecord, test: Samples, columns: Preprocessing) -> dict[str, float]:
    """Return the metrics of a run's final model on rows with times.

    Args:
        run: The run.
        test: The rows.
        columns: The preprocessing of the rows, with the borders of the intervals.
    """
    config = parse_run_config(run.config)
    evaluator = TimeEvaluator(config, resources.new_model(config, test.shape), test, columns)
    return evaluator(evaluator.start_from(_read_weights(run)))


def compare_scores(
    test: Samples, scores: NDArray[np.float64], reference: NDArray[np.float64]
) -> PairedDifference | None:
    """Return the difference of two models' AUCs on the same rows or, with times, of their concordances.

    Args:
        test: The rows.
        scores: The first model's scores.
        reference: The second model's scores, whose metric is subtracted.

    Returns:
        The difference. None: no two rows with times are comparable, or rows have findings.
    """
    if test.findings is not None:
        return None
    if test.periods is None:
        return paired_difference(test.labels, scores, reference)
    try:
        return compare_concordances(test.periods.exits, test.labels, scores, reference, test.periods.entries)
    except ValueError:
        return None


def concordance_interval(test: Samples, scores: NDArray[np.float64]) -> tuple[float, float] | None:
    """Return the 95 % interval of the concordance of rows with times. None: they have too few events.

    Args:
        test: The rows.
        scores: Their scores.
    """
    assert test.periods is not None
    value, derivative = derive_rows(test.periods.exits, test.labels, scores, test.periods.entries)
    low, high = spread(value, float((derivative**2).sum()), int(test.labels.sum()))
    return (low, high) if np.isfinite(low) else None


def _read_weights(run: RunRecord) -> dict[str, torch.Tensor]:
    name = "model_best" if "selected" in run.result else "model"
    weights: dict[str, torch.Tensor] = load_file(run.path / f"{name}.safetensors")
    return weights
