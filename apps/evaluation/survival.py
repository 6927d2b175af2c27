"""The content of survival.json: survival of the evaluated rows by time, by predicted risk and by site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from apps.evaluation.site_times import SiteTimeEvaluator
from apps.evaluation.small_cells import SmallCells
from apps.evaluation.times import TimeEvaluator, baseline_of
from payloads.record import FloatArray
from payloads.site_names import label_site
from problems.least_cell import is_small
from problems.objectives.hazard import COX, HAZARD
from problems.survival.baseline import Baseline
from problems.survival.kaplan_meier import kaplan_meier
from problems.survival.summary import CountedRows, describe_curve, round_finite, summarise
from problems.tallies import NOWHERE

SURVIVAL = "survival"
_NO_SITES = "sites: the server cannot assign rows to sites"
_NO_GROUPS = "subgroups: rows with times have no figures of subgroups"


def read_baseline(
    loss: str, times: Sequence[float], hazard: np.ndarray | None, result: Mapping[str, Any]
) -> Baseline | None:
    """Return the baseline of a model of times.

    Args:
        loss: The run's loss.
        times: The borders of the intervals.
        hazard: The model's parameters ``hazard.baseline``. None: the loss has none.
        result: The entries of result.json, in which a Cox model's baseline is.

    Returns:
        The baseline. None: the model's scores have no probabilities, as with a stratified Cox model.
    """
    at = np.array(times, dtype=np.float64)
    if loss == HAZARD and hazard is not None:
        return Baseline(loss, at, np.asarray(hazard, np.float64)[: len(at)])
    cumulative = result.get("coefficients", {}).get("baseline") if loss == COX else None
    return None if cumulative is None else Baseline(loss, at, np.array(cumulative, dtype=np.float64)[: len(at)])


def describe_survival(
    evaluator: TimeEvaluator | SiteTimeEvaluator,
    arrays: Sequence[FloatArray],
    result: Mapping[str, Any],
    cells: SmallCells,
    names: Mapping[str, str],
) -> dict[str, Any]:
    """Describe the survival of a run's evaluated rows.

    Args:
        evaluator: The evaluator of the final model.
        arrays: The final model.
        result: The further entries of result.json.
        cells: The smallest counts that the sites reveal.
        names: The names of sites, by partition id as text.

    Returns:
        The content of survival.json.
    """
    times, rows = evaluator.borders, evaluator.count(arrays)
    hazard = None
    if evaluator.config.training.loss == HAZARD:
        evaluator.model.load(arrays)
        hazard = baseline_of(evaluator.model, evaluator.config).numpy()
    baseline = read_baseline(evaluator.config.training.loss, times, hazard, result)
    survival = None if baseline is None else baseline.survive(rows.scores)
    horizon = evaluator.horizon
    found = summarise(rows, times, horizon, survival, cells.of_counts(NOWHERE))
    left_out = found.pop("left_out")
    found["horizon"] = float(times[horizon])
    if rows.sites is None:
        left_out.append(_NO_SITES)
    else:
        found["sites"] = _describe_sites(rows, times, horizon, cells, names)
        if few := len(rows.sites) - len(found["sites"]):
            left_out.append(f"sites: {few} with few rows")
    return {**found, "left_out": [*left_out, _NO_GROUPS]}


def _describe_sites(
    rows: CountedRows, times: Sequence[float], horizon: int, cells: SmallCells, names: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the survival at the horizon and the curve of each site with enough rows."""
    found = []
    for site, counts in (rows.sites or {}).items():
        if is_small([int(counts.sum())], cells.of_site(site)):
            continue
        curve = kaplan_meier(counts)
        at_horizon = [round_finite(values[horizon]) for values in (curve.survival, curve.low, curve.high)]
        entry = {"partition": site, "name": label_site(site, names), "survival_at_horizon": at_horizon}
        found.append({**entry, **describe_curve(counts, times)})
    return found
