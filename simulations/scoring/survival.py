"""Survival probabilities of new rows: the option ``--times`` of ``predict``, and `TrainedModel.predict_survival`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from apps.config import ConfigError
from apps.evaluation.times import find_horizon
from problems.data import DataError
from problems.data.cells import without_markers
from problems.data.times import read_times
from problems.metrics import Interval
from problems.objectives.hazard import COX, HAZARD
from problems.survival.baseline import Baseline
from problems.survival.intervals import time_intervals

if TYPE_CHECKING:
    from simulations.scoring.model import TrainedModel

RISK = "risk_score"  # the column and the output of the score, if rows have times
SURVIVAL = "survival"  # the prefix of a column of survival probabilities
OPTION = "--times"


def parse_times(text: str) -> tuple[float, ...]:
    """Parse the value of ``--times``, such as "6, 12, 24".

    Args:
        text: The value.

    Raises:
        DataError: A part is not a number, or occurs twice.

    Example:
        >>> parse_times("6, 12.5")
        (6.0, 12.5)
    """
    try:
        times = tuple(float(part) for part in text.split(","))
    except ValueError:
        times = ()
    if not times or len(set(times)) < len(times) or not np.isfinite(times).all():
        hint = "write it like '6, 12, 24'"
        raise DataError(OPTION, got=repr(text), allowed="different numbers, separated by commas", hint=hint)
    return times


def name_column(time: float) -> str:
    """Return the name of the column with the survival until a time.

    Example:
        >>> name_column(6.0), name_column(0.5)
        ('survival_6', 'survival_0.5')
    """
    return f"{SURVIVAL}_{time:g}"


def need_baseline(model: TrainedModel) -> Baseline:
    """Return the baseline that turns a model's scores into survival.

    Args:
        model: The model.

    Raises:
        ConfigError: The rows of the run have no times, or the model predicts scores alone.
    """
    if model.baseline is not None:
        return model.baseline
    allowed, loss = "a run with probabilities of survival", model.config.training.loss
    if not model.timed:
        hint = f"remove {OPTION}"
        raise ConfigError(OPTION, got="a run without time-column", allowed=allowed, hint=hint)
    got = f"a run with loss {loss!r}, which estimates the order of events and no baseline hazard"
    hint = f"remove {OPTION}, or train with loss {HAZARD!r}"
    if loss == COX:
        got = "a Cox model of an earlier round, or with a baseline for each site (newton.site-effects)"
        hint = f"remove {OPTION}, set newton.site-effects to false, or train with strategy 'local-sgd'"
    raise ConfigError(OPTION, got=got, allowed=allowed, hint=hint)


def default_times(model: TrainedModel) -> tuple[float, ...]:
    """Return the time of a table of scores without ``--times``: the run's horizon; () for a model of scores alone."""
    return () if model.baseline is None else (model.horizon,)


def survive(baseline: Baseline, scores: NDArray[np.float64], times: Sequence[float]) -> NDArray[np.float64]:
    """Return the survival of rows (n, t) until times, each taken at the last border at or before it.

    Args:
        baseline: The model's baseline.
        scores: The rows' scores (n,).
        times: The times (t,).

    Raises:
        DataError: A time is below 0, or after the last border.
    """
    places = [baseline.find_border(time) for time in times]
    whole = np.column_stack([np.ones(len(scores)), baseline.survive(scores)])
    return whole[:, [place + 1 for place in places]]


def describe_times(baseline: Baseline, times: Sequence[float]) -> str:
    """Return, in words, the borders at which the survival is taken; "" if all times are borders.

    Args:
        baseline: The model's baseline.
        times: The times.
    """
    borders = [0.0, *baseline.times.tolist()]
    between = [(time, borders[baseline.find_border(time) + 1]) for time in times]
    parts = [f"{name_column(time)} is the survival until {border:g}" for time, border in between if time != border]
    return f"{', '.join(parts)}, the last border of the run's intervals before it" if parts else ""


def measure_times(
    model: TrainedModel,
    table: Any,
    labels: NDArray[np.int8],
    scores: NDArray[np.float64],
    **options: Any,
) -> dict[str, Interval]:
    """Measure a model on new rows with times.

    Args:
        model: The model.
        table: The rows, with the run's ``time-column`` and ``entry-column``.
        labels: 1 for rows with an event, else 0.
        scores: The rows' scores.
        options: The options of the intervals, see `problems.survival.intervals.time_intervals`.

    Raises:
        DataError: A column is missing, or has cells that are not times.
        ValueError: The rows determine no metric.
    """
    columns = model.preprocessing
    assert columns is not None
    wanted = [name for name in (columns.time_column, columns.entry_column) if name]
    if missing := [name for name in wanted if name not in table.columns]:
        allowed = "the run's time-column and entry-column, since the metrics need them"
        raise DataError(
            "columns", got=f"no column {', '.join(missing)}", allowed=allowed, hint="add it, or use `predict`"
        )
    ends, *entries = (without_markers(table[name], ()) for name in wanted)
    periods = read_times(ends, entries[0] if entries else None).on_grid(columns.time_borders)
    horizon = find_horizon(columns, model.config.evaluation.horizon)
    survival = None
    if model.baseline is not None and horizon < len(model.baseline.times):
        survival = model.baseline.survive(scores)[:, horizon]
    grid = periods.num_intervals
    return time_intervals(periods.exits, labels, scores, grid, horizon, survival, periods.entries, **options)
