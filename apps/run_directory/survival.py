"""The files survival.json and survival.png: Kaplan-Meier curves of rows by predicted risk, and the calibration.

This module does not use pyplot, whose state belongs to the main thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from problems.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "survival.json"
# from low to high risk, also distinguishable in grey
_COLORS = ("#1b9e77", "#7570b3", "#d95f02")
_TICKS = 6
# the ratios of the panels: curves and calibration; curves and numbers of rows
_WIDTHS, _HEIGHTS = (5, 4), (5, 1)


def save_survival(folder: Path, survival: Mapping[str, Any]) -> None:
    """Write survival.json into a run directory.

    Args:
        folder: The run directory.
        survival: The content.
    """
    write_atomic(folder / NAME, (json.dumps(survival, indent=2) + "\n").encode())


def read_survival(folder: Path) -> dict[str, Any]:
    """Return the content of survival.json; {} without the file.

    Args:
        folder: The run directory.
    """
    path = folder / NAME
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def draw_survival(path: Path, title: str, survival: Mapping[str, Any], rows: str, unit: str) -> None:
    """Draw the curves, the numbers of rows under observation, and the calibration as a PNG file.

    Args:
        path: The file.
        title: The title.
        survival: The content of survival.json.
        rows: A description of the rows, see `apps.run_directory.curves.rows_in_words`.
        unit: The label of the axis of times, such as the name of their column.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    calibration = survival.get("calibration")
    figure = Figure(figsize=(11 if calibration else 7, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(
        2, 2 if calibration else 1, width_ratios=_WIDTHS[: 1 + bool(calibration)], height_ratios=_HEIGHTS
    )
    left = figure.add_subplot(grid[0, 0])
    plot_curves(left, figure.add_subplot(grid[1, 0], sharex=left), survival, unit)
    left.set(title=f"{title}, {rows}")
    if calibration:
        plot_calibration(figure.add_subplot(grid[:, 1]), calibration)
    figure.savefig(path, dpi=120)


def plot_curves(axes: Axes, below: Axes, survival: Mapping[str, Any], unit: str) -> None:
    """Draw the curves of all rows and of the thirds by risk, and the numbers of rows below them.

    Args:
        axes: The axes of the curves.
        below: The axes of the numbers, which share the axis of times.
        survival: The content of survival.json.
        unit: The label of the axis of times.
    """
    curves = [("all rows", "black", survival["all"])]
    groups = survival.get("risk_groups", [])
    curves += [(group["group"], color, group) for group, color in zip(groups, _COLORS, strict=False)]
    for label, color, curve in curves:
        _draw_curve(axes, curve, label, color, whole=survival["least_cell"] <= 1)
    axes.set(xlabel=unit, ylabel="share without an event (Kaplan-Meier)", ylim=(0, 1.02))
    axes.set(xlim=(0, survival["all"]["times"][-1]))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
    _list_rows(axes, below, curves)


def _draw_curve(axes: Axes, curve: Mapping[str, Any], label: str, color: str, *, whole: bool) -> None:
    """Draw steps with a band of the interval. If the curve is not whole: points, since steps between are unknown."""
    times = curve["times"]
    shares, low, high = (np.array(curve[name], dtype=float) for name in ("survival", "low", "high"))
    if not whole:
        axes.plot(times, shares, "o:", color=color, label=label, linewidth=1, markersize=4)
        axes.vlines(times, low, high, color=color, linewidth=1)
        return
    axes.step(times, shares, where="post", color=color, label=label, linewidth=1.6)
    axes.fill_between(times, low, high, step="post", color=color, alpha=0.12, linewidth=0)


def _list_rows(axes: Axes, below: Axes, curves: list[tuple[str, str, Any]]) -> None:
    """Write the numbers of rows under observation below the curves, at about six times."""
    from matplotlib.ticker import MaxNLocator

    times = np.array(curves[0][2]["times"])
    ticks = [tick for tick in MaxNLocator(_TICKS).tick_values(0, times[-1]) if 0 <= tick <= times[-1]]
    axes.set_xticks(ticks)
    below.axis("off")
    below.set_ylim(-len(curves), 1)
    below.text(0, 0.5, "rows under observation", fontsize="small", va="center")
    for number, (_, color, curve) in enumerate(curves):
        known = np.array(curve["times"])
        for before, tick in zip([-1.0, *ticks], ticks, strict=False):
            # a curve without small counts has fewer times: no number without a time since the tick before
            if not ((known > before) & (known <= tick)).any():
                continue
            text = f"{curve['remaining'][np.searchsorted(known, tick, 'right') - 1]:,}"
            below.text(tick, -number - 0.5, text, color=color, fontsize="small", ha="center", va="center")


def plot_calibration(axes: Axes, calibration: Mapping[str, Any]) -> None:
    """Draw the observed by the predicted risk of each group, with intervals.

    Args:
        axes: The axes.
        calibration: The entry ``calibration`` of survival.json.
    """
    names = ("predicted", "observed", "low", "high")
    points = np.array([[group[name] for name in names] for group in calibration["groups"]], dtype=float)
    predicted, observed, low, high = points.T
    top = min(1.0, 1.08 * float(np.nanmax(points)))
    axes.plot([0, top], [0, top], color="tab:gray", linestyle=":", linewidth=1)
    axes.vlines(predicted, low, high, color="black", linewidth=1)
    axes.plot(predicted, observed, "o", color="black", markersize=4)
    axes.set(title=f"risk of an event until {calibration['time']:g}", xlim=(0, top), ylim=(0, top), aspect="equal")
    axes.set(xlabel="mean predicted risk of a group", ylabel="observed risk (Kaplan-Meier)")
    axes.grid(alpha=0.3)
