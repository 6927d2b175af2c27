"""The figure of a reproduction: panels side by side, with curves of the mean and standard deviation over seeds."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from apps.run_directory.curves import RANKING
from simulations.experiments.expansion import Expansion
from simulations.experiments.lines import Line
from simulations.results.figure import mean_and_spread
from simulations.results.records import TRAINING_SECONDS, RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELS = {
    **RANKING,
    "loss": "objective",
    "grad_phi_sq": r"$\|\nabla\Phi(\bar{x})\|^2$",
    "objective": "$f + g$",
    "optimality": r"$\|x - x^\ast\| / \|x^\ast\|$",
    "stationarity": r"distance of 0 to $\nabla f + \partial g$",
    "nonzeros": "parameters that are not zero",
    "support_f1": "F1 of the support",
    "suboptimality": "$f - f^\\ast$",
    "rmse": "RMSE on the test set",
    TRAINING_SECONDS: "seconds of training",
}
ABSCISSAE = {
    "round": "communication round",
    "iteration": "local iteration",
    "communication": "communication step",
    "seconds": "seconds",
    "megabytes": "megabytes sent",
    "clients": "number of clients",
}
_PANEL_SIZE, _SINGLE_SIZE = (4.2, 3.3), (6.4, 4.2)  # inches
_SIDES = 0.14  # inches left and right of a panel: half the width of a tick's number, which the layout ignores
_CHARACTERS = 12  # of the title, in an inch
_FILLED = 0.3  # least part of a y axis that each panel sharing it must fill, and the values of trained models
_FEW = 3  # a curve must have so many points of trained models before a panel leaves the untrained ones out
_MARGIN = 0.05  # of a y axis, above and below
_MARKED = 40  # a curve of fewer points shows them
_STYLES = ("-", "--", ":", "-.")
_Runs = list[tuple[Line, list[RunRecord]]]  # a curve's lines, each with its finished runs


@dataclass(frozen=True)
class Curve:
    """One line of a panel; all arrays (points,)."""

    label: str
    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: int


def panels(expansion: Expansion, records: Mapping[str, RunRecord], x: str) -> dict[str, list[Curve]]:
    """The curves of each panel over one of the x axes.

    Args:
        records: the finished runs by the names of their run directories.
        x: one of `ABSCISSAE`.

    Returns:
        Panel -> its curves, of the experiment's first metric. Those without a finished run are left out.
    """
    experiment = expansion.experiment
    metric, log = experiment.metrics[0], experiment.scale == "log"
    found: dict[str, dict[str, _Runs]] = {}
    for line in expansion.lines:
        ended = [run for run in expansion.find_ended(line, records).values() if run.curve(metric)]
        if ended:
            found.setdefault(line.panel, {}).setdefault(line.curve, []).append((line, ended))
    make = _over_clients if x == "clients" else partial(_over_rounds, x=x)
    return {
        panel: [make(label, runs, metric, log) for label, runs in curves.items()] for panel, curves in found.items()
    }


def _over_clients(label: str, runs: _Runs, metric: str, log: bool) -> Curve:
    """The values of the models that the runs leave, a point for each number of clients."""
    runs = sorted(runs, key=lambda one: one[0].clients)
    ends = [[value for run in ended if (value := run.final(metric)) is not None] for _, ended in runs]
    mean = np.array([np.mean(values) for values in ends])
    spread = np.array([np.std(values, ddof=1) if len(values) > 1 else 0.0 for values in ends])
    places = np.array([float(line.clients) for line, _ in runs])
    return Curve(label, places, mean, *band(mean, spread, log), min(map(len, ends)))


def _over_rounds(label: str, runs: _Runs, metric: str, log: bool, x: str) -> Curve:
    """The evaluated rounds' values, each at the mean of its places on the x axis."""
    ((line, ended),) = runs
    rounds, mean, spread = mean_and_spread([run.curve(metric) for run in ended])
    by_round = [_abscissa(run, x, line.run.communications) for run in ended]
    places = np.mean([[places[r] for r in rounds] for places in by_round], axis=0)  # (points,)
    return Curve(label, places, mean, *band(mean, spread, log), len(ended))


def band(mean: np.ndarray, spread: np.ndarray, log: bool) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the shaded range: mean -+ standard deviation.

    Args:
        mean: (points,).
        spread: (points,) standard deviations.
        log: the axis is logarithmic. There mean - standard deviation may not be positive, so the range is as long
            downwards as upwards.

    Returns:
        (points,) lower and upper ends.
    """
    high = mean + spread
    return (mean**2 / np.where(high > 0, high, 1.0) if log else mean - spread), high


def _abscissa(run: RunRecord, x: str, communications: int) -> dict[int, float]:
    """Round -> its place on the x axis."""
    rounds = [line["round"] for line in run.lines]
    steps = {"round": 1, "iteration": int(str(run.config["local-steps"])), "communication": communications}
    if x in steps:
        return {r: float(steps[x] * r) for r in rounds}
    if x == "seconds":
        parts = [float(line.get(TRAINING_SECONDS, line.get("seconds", 0.0))) for line in run.lines]
    else:
        parts = [(line.get("bytes_up", 0) + line.get("bytes_down", 0)) / 1e6 for line in run.lines]
    return dict(zip(rounds, accumulate(parts), strict=True))


def draw(expansion: Expansion, records: Mapping[str, RunRecord], folder: Path) -> None:
    """Write curves.png and curves.svg; without pyplot, whose state belongs to the main thread.

    Args:
        records: the finished runs by the names of their run directories; without a curve nothing is written.
    """
    from matplotlib import rc_context

    found = [panels(expansion, records, x) for x in expansion.experiment.x]
    if not found[0]:
        return
    figure = _figure(expansion, found)
    with rc_context({"svg.hashsalt": expansion.experiment.name}):  # the same curves give the same file
        figure.savefig(folder / "curves.svg", metadata={"Date": None})
    figure.savefig(folder / "curves.png", dpi=150)


def _figure(expansion: Expansion, found: Sequence[Mapping[str, Sequence[Curve]]]) -> Figure:
    """Draw ``found``: the same panels for each x axis, those of the second x axis below those of the first."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    experiment = expansion.experiment
    metric = experiment.metrics[0]
    titles = list(found[0])
    number = len(titles)
    columns = number if number <= 4 else min(4, math.ceil(math.sqrt(number)))
    rows = math.ceil(number / columns)
    every = [curves for drawn in found for curves in drawn.values()]
    labels = list(dict.fromkeys(curve.label for curves in every for curve in curves))
    width, height = _PANEL_SIZE if len(every) > 1 else _SINGLE_SIZE
    figure = Figure(figsize=(columns * width, len(found) * rows * height + 0.5))
    figure.set_layout_engine("constrained", w_pad=_SIDES)
    FigureCanvasAgg(figure)
    table = figure.subplots(len(found) * rows, columns, squeeze=False)
    blocks = [list(table[first : first + rows].flat) for first in range(0, len(table), rows)]
    for axes in (axes for block in blocks for axes in block[number:]):
        axes.remove()
    grid = [axes for block in blocks for axes in block[:number]]
    together = comparable(every, experiment.scale == "log")
    for place, (axes, curves) in enumerate(zip(grid, every, strict=True)):
        kind, panel = divmod(place, number)
        x, title = experiment.x[kind], titles[panel]
        if place and place in together:
            axes.sharey(grid[0])
        _panel(axes, title, curves, labels, experiment.scale)
        axes.set_xlabel(experiment.x_label[kind] if experiment.x_label else ABSCISSAE[x])
        if x == "clients":
            _number(axes, curves, experiment.scale)
        if panel % columns == 0:
            axes.set_ylabel(experiment.y_label or LABELS.get(metric, metric))
        elif place in together:
            axes.tick_params(labelleft=False)
    if experiment.scale == "linear":
        _show(grid, every, together)
    complete = next((place for place, curves in enumerate(every) if len(curves) == len(labels)), None)
    if len(every) > 1 and complete is not None:
        handles, names = grid[complete].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 2 * columns), frameon=False)
    else:
        for axes in grid:
            axes.legend(frameon=False, fontsize="small")
    seeds = f"{expansion.seeds} seed{'s' if expansion.seeds > 1 else ''}"
    title = textwrap.fill(f"{experiment.title} ({expansion.profile}, {seeds})", round(columns * width * _CHARACTERS))
    figure.suptitle(_plain(title), fontsize="medium")
    return figure


def comparable(curves: Sequence[Sequence[Curve]], log: bool) -> set[int]:
    """The panels that share the first one's y axis, since each still fills a good part of it.

    Returns:
        Places in ``curves``, which has those of each panel; 0 is among them.
    """
    ranges = [_range(panel, log) for panel in curves]
    shared, low, high, least = {0}, *ranges[0], ranges[0][1] - ranges[0][0]
    for number, (bottom, top) in enumerate(ranges[1:], start=1):
        joint, smallest = max(high, top) - min(low, bottom), min(least, top - bottom)
        if joint * _FILLED <= smallest:
            shared, low, high, least = {*shared, number}, min(low, bottom), max(high, top), smallest
    return shared


def _range(curves: Sequence[Curve], log: bool) -> tuple[float, float]:
    """The range of y, or of log y, that a panel shows.

    On a linear axis it leaves untrained models out if they would flatten the rest.
    """
    values = np.concatenate([np.concatenate([curve.low, curve.high]) for curve in curves])
    values = np.log(values[values > 0]) if log else values
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    trained = [part[curve.x > 0] for curve in curves for part in (curve.low, curve.high)]
    if log or max(map(len, trained)) < _FEW:
        return low, high
    least, most = float(np.concatenate(trained).min()), float(np.concatenate(trained).max())
    return (least, most) if 0 < most - least < _FILLED * (high - low) else (low, high)


def _show(grid: Sequence[Axes], found: Sequence[Sequence[Curve]], together: set[int]) -> None:
    """Set the range of each linear y axis; a shared axis covers the ranges of all its panels."""
    ranges = [_range(curves, log=False) for curves in found]
    for group in (together, *({number} for number in range(len(found)) if number not in together)):
        low, high = min(ranges[number][0] for number in group), max(ranges[number][1] for number in group)
        if 0 < high - low < math.inf:  # else matplotlib leaves out what is not finite
            grid[min(group)].set_ylim(low - _MARGIN * (high - low), high + _MARGIN * (high - low))


def _panel(axes: Axes, title: str, curves: Sequence[Curve], labels: Sequence[str], scale: str) -> None:
    for curve in curves:
        number = labels.index(curve.label)  # a label has one colour in all panels
        style: dict[str, Any] = {"color": f"C{number % 10}", "linestyle": _STYLES[number // 10 % len(_STYLES)]}
        marker = "." if len(curve.x) < _MARKED else None
        axes.plot(curve.x, curve.mean, label=_plain(curve.label), marker=marker, linewidth=1.4, **style)
        if curve.seeds > 1:
            axes.fill_between(curve.x, curve.low, curve.high, color=style["color"], alpha=0.2, linewidth=0)
    axes.set_yscale(scale)
    axes.set_title(_plain(title), fontsize="medium")
    axes.grid(alpha=0.3)
    axes.margins(x=0.02)


def _number(axes: Axes, curves: Sequence[Curve], scale: str) -> None:
    """Put ticks at the numbers of clients. If y is logarithmic, x is too: a linear speed-up is a straight line."""
    places = sorted({float(x) for curve in curves for x in curve.x})
    axes.set_xscale(scale)
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set_xticks([], minor=True)


def _plain(text: str) -> str:
    """The text with its dollar signs escaped, which matplotlib would take for formulas."""
    return text.replace("$", r"\$")
