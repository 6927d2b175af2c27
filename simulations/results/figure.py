"""Figures: panels of curves, each the mean over seeds with the standard deviation shaded."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL, _SINGLE = (4.2, 3.2), (8.0, 4.6)  # a panel's size in inches, and the size of a single panel
_SIDES = 0.14  # inches left and right of a panel: half the width of a tick's number, which the layout ignores
_CHARACTERS, _LINE = 12, 0.18  # a text's characters per inch, and its lines' height in inches
_FILLED = 0.3  # the minimum part of a linear y axis that trained models fill
_FEW = 3  # the minimum number of a curve's points of trained models for a panel without the untrained models
_MARGIN = 0.05  # of a y axis, above and below
_MARKED = 40  # a curve with fewer points shows them
_STYLES = ("-", "--", ":", "-.")

# the curves of runs by label; a curve contains metrics by round
Groups = Mapping[str, Sequence[Mapping[int, float]]]


@dataclass(frozen=True)
class Curve:
    """A line of a panel. All arrays have shape (points,)."""

    label: str
    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: int

    @classmethod
    def of(cls, label: str, points: Collection[tuple[float, Sequence[float]]], log: bool = False) -> Curve:
        """Return the mean of values at each point, with a band of one sample standard deviation.

        Args:
            label: The curve's name.
            points: Each point's place on the x axis, and the values of the seeds there, at least one value.
            log: Whether the axis is logarithmic. Mean - standard deviation may not be positive there, so the range is
                as long downwards as upwards.
        """
        places, values = [place for place, _ in points], [several for _, several in points]
        mean = np.array([np.mean(several) for several in values])
        spread = np.array([np.std(several, ddof=1) if len(several) > 1 else 0.0 for several in values])
        high = mean + spread
        low = mean**2 / np.where(high > 0, high, 1.0) if log else mean - spread
        return cls(label, np.array(places, dtype=float), mean, low, high, min(map(len, values), default=0))


@dataclass(frozen=True)
class Panel:
    """Curves that share their axes."""

    y_label: str
    curves: Sequence[Curve]
    x_label: str = "round"
    title: str = ""
    scale: str = "linear"
    at_points: bool = False  # the x axis has ticks only at the points, and the scale of the y axis


def in_common(curves: Sequence[Mapping[int, float]]) -> dict[int, list[float]]:
    """Return the values of several curves in the rounds that all of them have.

    Args:
        curves: The curves, metrics by round; at least one curve.
    """
    return {number: [curve[number] for curve in curves] for number in sorted(set.intersection(*map(set, curves)))}


def draw(
    panels: Mapping[str, Groups],
    target: Path | IO[bytes],
    form: str = "png",
    size: tuple[float, float] | None = None,
) -> None:
    """Draw a panel for each metric, with a curve for each group of runs.

    Args:
        panels: The groups of curves, by the text of the y axis.
        target: The file.
        form: The file's form, "png" or "svg". The same curves give the same file.
        size: The size of a single panel in inches. None: the usual size.
    """
    sizes = {label: len(curves) for groups in panels.values() for label, curves in groups.items()}
    named = {label: f"{label}  ({size} runs)" if size > 1 else label for label, size in sizes.items()}
    found = [
        Panel(y_label, [Curve.of(named[label], in_common(curves).items()) for label, curves in groups.items()])
        for y_label, groups in panels.items()
    ]
    save(plot(found, min(3, len(found)), single=size or _SINGLE), target, form)


def plot(
    panels: Sequence[Panel | None], columns: int, title: str = "", single: tuple[float, float] = _SINGLE
) -> Figure:
    """Plot panels row by row, with the names of their curves below.

    Args:
        panels: The panels. None: an empty place.
        columns: The number of panels in a row.
        title: The text above all panels.
        single: The size in inches if there is a single panel.
    """
    # without pyplot, whose state belongs to the main thread
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    labels = list(dict.fromkeys(curve.label for panel in panels if panel for curve in panel.curves))
    width, height = single if len(panels) == 1 else (_PANEL[0] * columns, _PANEL[1] * math.ceil(len(panels) / columns))
    characters = round(width * _CHARACTERS)
    beside = min(3, max(1, characters // max(map(len, labels), default=1)))
    heading, *names = (_plain(textwrap.fill(text, characters)) for text in (title, *labels))
    lines = 2 * heading.count("\n") + sum(name.count("\n") + 1 for name in names) / beside
    figure = Figure(figsize=(width, height + _LINE * lines))
    figure.set_layout_engine("constrained", w_pad=_SIDES)
    FigureCanvasAgg(figure)
    grid = figure.subplots(math.ceil(len(panels) / columns), columns, squeeze=False).flat
    drawn: dict[str, Any] = {}
    for axes, panel in zip_longest(grid, panels):
        if panel is None:
            axes.remove()
        else:
            drawn |= _draw_panel(axes, panel, labels)
    if drawn:
        handles = [drawn[label] for label in labels]
        figure.legend(handles, names, loc="outside lower left", ncols=beside, frameon=False, fontsize="small")
    if title:
        figure.suptitle(heading, fontsize="medium")
    return figure


def save(figure: Figure, target: Path | IO[bytes], form: str) -> None:
    """Write a figure. The same curves give the same file.

    Args:
        figure: The figure.
        target: The file.
        form: The file's form, "png" or "svg".
    """
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "runs"}):
        figure.savefig(target, dpi=120, format=form, metadata={"Date": None} if form == "svg" else None)


def _draw_panel(axes: Axes, panel: Panel, labels: Sequence[str]) -> dict[str, Any]:
    """Draw a panel, and return the line of each label, which has one colour in all panels."""
    drawn = {}
    for curve in panel.curves:
        number = labels.index(curve.label)
        color, style = f"C{number % 10}", _STYLES[number // 10 % len(_STYLES)]
        marker = "." if len(curve.x) < _MARKED else None
        (drawn[curve.label],) = axes.plot(curve.x, curve.mean, color=color, linestyle=style, marker=marker)
        if curve.seeds > 1:
            axes.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.2, linewidth=0)
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label, yscale=panel.scale)
    axes.set_title(_plain(panel.title), fontsize="medium")
    axes.grid(alpha=0.3)
    axes.margins(x=0.02)
    places = sorted({float(x) for curve in panel.curves for x in curve.x})
    if panel.at_points:
        axes.set_xscale(panel.scale)  # on two logarithmic axes a linear speed-up is a straight line
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.set_xticks([], minor=True)
    elif all(place.is_integer() for place in places):
        axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    if panel.scale == "linear":
        low, high = _range(panel.curves)
        if 0 < high - low < math.inf:  # otherwise matplotlib skips values that are not finite
            axes.set_ylim(low - _MARGIN * (high - low), high + _MARGIN * (high - low))
    return drawn


def _range(curves: Sequence[Curve]) -> tuple[float, float]:
    """Return the range of a linear y axis. It excludes untrained models if they would flatten the curves."""
    ends = [(np.concatenate([curve.low, curve.high]), np.tile(curve.x > 0, 2)) for curve in curves]
    low, high = _extent([values for values, _ in ends])
    if all(trained.sum() < 2 * _FEW for _, trained in ends):
        return low, high
    least, most = _extent([values[trained] for values, trained in ends])
    return (least, most) if 0 < most - least < _FILLED * (high - low) else (low, high)


def _extent(values: Sequence[np.ndarray]) -> tuple[float, float]:
    together = np.concatenate([*values, np.zeros(0)])
    return (float(together.min()), float(together.max())) if len(together) else (0.0, 0.0)


def _plain(text: str) -> str:
    """Return the text with its dollar signs escaped, which matplotlib would take for formulas."""
    return text.replace("$", r"\$")
