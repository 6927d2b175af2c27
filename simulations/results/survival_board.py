"""A run's answers about times to an event: metrics with their meaning, curves and calibration, for report and card."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from apps.run_directory.survival import NAME
from simulations.results.board import Board
from simulations.results.board_figures import BoardFigure
from simulations.results.figure import save
from simulations.results.output import Table, format_metric
from simulations.results.records import RunRecord, read_object

_SIZE, _HEIGHTS = (4.6, 4.4), (5, 1.1)  # inches of a figure; the ratio of the curves and the numbers of rows
_MEANINGS = {
    "concordance": "share of comparable pairs of rows whose scores have the right order; 0.5 is chance",
    "concordance_uno": "the same, weighted for censoring",
    "auc_horizon": "AUC of rows with an event until {horizon} against later rows; 0.5 is chance",
    "brier_horizon": "mean squared error of the predicted survival until {horizon}; 0 is perfect",
    "loss": "mean loss of a row",
}
NO_CURVES = "The run has no curves: {}."


def read_survival(run: RunRecord) -> dict[str, Any]:
    """Return the content of survival.json; {} if the rows of the run have no times, or it has not finished."""
    try:
        return read_object(run.path / NAME)
    except (OSError, ValueError):
        return {}


def tabulate_metrics(run: RunRecord, survival: Mapping[str, Any]) -> Table:
    """Return the table of the metrics of times, with their meaning.

    Args:
        run: The run.
        survival: The content of survival.json.
    """
    value, low, high = survival["concordance"]
    rows = []
    for name, meaning in _MEANINGS.items():
        if name in run.metrics:
            exact = name == "concordance" and low is not None
            text = format_metric(run.metrics[name])
            text += f" ({low:.4f} to {high:.4f})" if exact and abs(value - run.metrics[name]) < 1e-4 else ""
            rows.append([name, (text, run.metrics[name]), meaning.format(horizon=f"{survival['horizon']:g}")])
    caption = f"metrics on {Board.of(run).rows_in_words}, with 95 % intervals if there are three numbers"
    return Table(caption, ["metric", "value", "meaning"], rows)


def describe_calibration(survival: Mapping[str, Any]) -> str:
    """Return a sentence about the predicted and the observed risk of all rows; "" without probabilities."""
    if not (entry := survival.get("calibration")):
        return ""
    everyone = entry["all"]
    start = f"Until {entry['time']:g} the mean predicted risk of an event is {everyone['predicted']:.3f}"
    if everyone["observed"] is None:
        return f"{start}; the observed risk is unknown, since the last rows are censored before."
    observed, low, high = (everyone[name] for name in ("observed", "low", "high"))
    interval = "" if low is None or high is None else f" (95 % interval {low:.3f} to {high:.3f})"
    return f"{start}, and the observed risk (Kaplan-Meier) is {observed:.3f}{interval}."


def tabulate_sites(survival: Mapping[str, Any]) -> Table:
    """Return the table of the survival until the horizon at each site; without rows if sites are unknown."""
    rows = []
    for site in survival.get("sites", []):
        value, low, high = site["survival_at_horizon"]
        interval = "-" if low is None or high is None else f"{low:.3f} to {high:.3f}"
        rows.append(
            [site["name"], site["rows"], site["events"], None if value is None else (f"{value:.3f}", value), interval]
        )
    columns = ["rows of", "rows", "events", "survival", "95 % interval"]
    return Table(f"survival until {survival['horizon']:g} by site (Kaplan-Meier)", columns, rows)


def draw_survival(run: RunRecord, survival: Mapping[str, Any]) -> Iterator[BoardFigure]:
    """Yield the curves and the calibration.

    Args:
        run: The run.
        survival: The content of survival.json.
    """
    from apps.run_directory.survival import plot_calibration, plot_curves

    left_out: Sequence[str] = survival["left_out"]
    if "all" in survival:
        unit = str(run.config.get("time-column") or "time")
        text = "Kaplan-Meier curves of all rows and of the thirds by predicted risk, with 95 % intervals."
        draw = partial(plot_curves, survival=survival, unit=unit)
        yield BoardFigure("Survival", _plot(draw, _HEIGHTS), text)
    else:
        yield BoardFigure("Survival", "", NO_CURVES.format(" ".join(left_out[:1])))
    if calibration := survival.get("calibration"):
        text = "Each point is a group of rows with similar predicted risk; on the dotted line both risks are equal."
        yield BoardFigure("Calibration", _plot(partial(plot_calibration, calibration=calibration), (1,)), text)
    elif reasons := [each for each in left_out if each.startswith("calibration")]:
        yield BoardFigure("Calibration", "", f"{reasons[0].capitalize()}.")


def _plot(draw: Callable[..., None], heights: Sequence[float]) -> str:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure, file = Figure(figsize=_SIZE, layout="constrained"), io.BytesIO()
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes in panels:
        axes.tick_params(labelbottom=True)
    draw(*panels)
    save(figure, file, "svg")
    return file.getvalue().decode()
