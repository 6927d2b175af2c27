"""The figure of a comparison: a panel for each metric, with a curve for each group of runs."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

_CHARACTERS, _LINE = 110, 0.18  # a legend's width in characters, and its lines' height in inches
_PANEL, _SINGLE, _SIDES = (4.2, 3.1), (9.0, 5.0), 0.1  # inches; the last one left and right of a panel
_COLUMNS = 3  # panels beside each other, at most

# label -> the curves of its runs, each round -> metric
Groups = Mapping[str, Sequence[Mapping[int, float]]]


def mean_and_spread(curves: Sequence[Mapping[int, float]]) -> tuple[list[int], np.ndarray, np.ndarray]:
    """The mean of curves and its spread, in the rounds that all of them have.

    Args:
        curves: each round -> metric; one at least.

    Returns:
        These rounds in order, and for them the (rounds,) means and sample standard deviations, 0 for one curve.
    """
    rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = np.array([[curve[r] for r in rounds] for curve in curves], dtype=float)  # (curves, rounds)
    spread = values.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(rounds))
    return rounds, values.mean(axis=0), spread


def draw(panels: Mapping[str, Groups], target: Path | IO[bytes], form: str = "png") -> None:
    """Draw a panel for each metric, with a line for each group; their names are below.

    A group of several curves is their mean, with the standard deviation shaded.

    Args:
        panels: the text beside the y axis -> the groups.
        form: the file's form, "png" or "svg"; the same curves give the same file.
    """
    from matplotlib import colormaps, rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    sizes = {label: len(curves) for groups in panels.values() for label, curves in groups.items()}
    titles = [f"{label}  ({size} runs)" if size > 1 else label for label, size in sizes.items()]
    beside = min(3, max(1, _CHARACTERS // max(map(len, titles), default=1)))
    titles = [textwrap.fill(title, _CHARACTERS).replace("$", r"\$") for title in titles]
    lines = sum(title.count("\n") + 1 for title in titles) / beside
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    width, height = _SINGLE if len(panels) == 1 else (_PANEL[0] * columns, _PANEL[1] * rows)
    figure = Figure(figsize=(width, height + _LINE * lines))
    figure.set_layout_engine("constrained", w_pad=_SIDES)
    FigureCanvasAgg(figure)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in grid[len(panels) :]:
        axes.remove()
    palette = colormaps["tab10" if len(sizes) <= 10 else "tab20"]
    colors = {label: palette(number % palette.N) for number, label in enumerate(sizes)}
    drawn: dict[str, Any] = {}
    for axes, (ordinate, groups) in zip(grid, panels.items(), strict=False):
        for label, curves in groups.items():
            rounds, mean, spread = mean_and_spread(curves)
            marker = "." if len(rounds) < 40 else None
            (drawn[label],) = axes.plot(rounds, mean, color=colors[label], marker=marker)
            if len(curves) > 1:
                axes.fill_between(rounds, mean - spread, mean + spread, color=colors[label], alpha=0.2, linewidth=0)
        axes.set(xlabel="round", ylabel=ordinate)
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if drawn:
        handles = [drawn[label] for label in sizes]
        figure.legend(handles, titles, loc="outside lower left", ncols=beside, frameon=False, fontsize="small")
    with rc_context({"svg.hashsalt": "runs"}):
        figure.savefig(target, dpi=120, format=form)
