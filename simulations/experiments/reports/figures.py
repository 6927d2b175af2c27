"""The figure of a reproduction: panels with curves of the mean and standard deviation over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from apps.evaluation.metric_names import TRAINING_SECONDS
from apps.run_directory.curves import RANKING
from simulations.experiments.expansion import Expansion
from simulations.experiments.lines import Line
from simulations.results.figure import Curve, Panel, in_common, plot, save
from simulations.results.records import RunRecord

if TYPE_CHECKING:
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
_COLUMNS = 4  # maximum number of panels in a row


def panels(expansion: Expansion, records: Mapping[str, RunRecord], x: str) -> dict[str, list[Curve]]:
    """Return the curves of each panel over an x axis.

    Args:
        expansion: The experiment.
        records: The finished runs by the names of their run directories.
        x: The x axis, an element of `ABSCISSAE`.

    Returns:
        The curves of the experiment's first metric by panel. Curves without a finished run are excluded.
    """
    metric, log = expansion.experiment.metrics[0], expansion.experiment.scale == "log"
    found: dict[str, dict[str, list[tuple[float, list[float]]]]] = {}
    for line in expansion.lines:
        ended = [run for run in expansion.find_ended(line, records).values() if run.curve(metric)]
        if ended:
            curves = found.setdefault(line.panel, {})
            curves.setdefault(line.curve, []).extend(_points(line, ended, metric, x))
    return {
        panel: [Curve.of(label, sorted(points, key=itemgetter(0)), log) for label, points in curves.items()]
        for panel, curves in found.items()
    }


def _points(line: Line, ended: Sequence[RunRecord], metric: str, x: str) -> Iterator[tuple[float, list[float]]]:
    """Yield a line's places on the x axis, each with the values of its finished runs."""
    if x == "clients":
        yield line.clients, [value for run in ended if (value := run.final(metric)) is not None]
        return
    places = [_abscissa(run, x, line.run.communications) for run in ended]
    for number, values in in_common([run.curve(metric) for run in ended]).items():
        yield float(np.mean([place[number] for place in places])), values


def _abscissa(run: RunRecord, x: str, communications: int) -> dict[int, float]:
    """Return the place of each round on the x axis, by round."""
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
    """Write curves.png and curves.svg.

    Args:
        expansion: The experiment.
        records: The finished runs by the names of their run directories. Without a curve nothing is written.
        folder: The reproduction's directory.
    """
    found = [panels(expansion, records, x) for x in expansion.experiment.x]
    if found[0]:
        figure = _figure(expansion, found)
        for form in ("svg", "png"):
            save(figure, folder / f"curves.{form}", form)


def _figure(expansion: Expansion, found: Sequence[Mapping[str, Sequence[Curve]]]) -> Figure:
    """Plot the same panels for each x axis, the panels of the second x axis below the first."""
    experiment = expansion.experiment
    number = len(found[0])
    columns = number if number <= _COLUMNS else min(_COLUMNS, math.ceil(math.sqrt(number)))
    y_label = experiment.y_label or LABELS.get(experiment.metrics[0], experiment.metrics[0])
    drawn: list[Panel | None] = []
    for x, label, several in zip(
        experiment.x, experiment.x_label or map(ABSCISSAE.get, experiment.x), found, strict=True
    ):
        drawn += [
            Panel(y_label, curves, str(label), title, experiment.scale, x == "clients")
            for title, curves in several.items()
        ]
        drawn += [None] * (-number % columns)
    return plot(drawn, columns, f"{experiment.title} ({expansion.profile}, {expansion.seeds_text})")
