"""The figure of a comparison: a curve for each group of runs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

_CHARACTERS, _LINE = 110, 0.18  # a legend's width in characters, and its lines' height in inches


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


def draw(groups: Mapping[str, Sequence[Mapping[int, float]]], path: Path, ordinate: str) -> None:
    """Draw one PNG: a line for each group, its standard deviation shaded if it has several curves, and names below.

    Args:
        groups: label -> curves, each round -> metric.
        ordinate: the text beside the y axis.
    """
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    titles = [f"{label}  ({len(curves)} runs)" if len(curves) > 1 else label for label, curves in groups.items()]
    columns = min(3, max(1, _CHARACTERS // max(map(len, titles), default=1)))
    titles = [textwrap.fill(title, _CHARACTERS).replace("$", r"\$") for title in titles]
    lines = sum(title.count("\n") + 1 for title in titles) / columns
    figure = Figure(figsize=(9, 5 + _LINE * lines), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    colors = colormaps["tab10" if len(groups) <= 10 else "tab20"]
    for number, (title, curves) in enumerate(zip(titles, groups.values(), strict=True)):
        rounds, mean, spread = mean_and_spread(curves)
        color = colors(number % colors.N)
        marker = "." if len(rounds) < 40 else None
        axes.plot(rounds, mean, label=title, color=color, marker=marker)
        if len(curves) > 1:
            axes.fill_between(rounds, mean - spread, mean + spread, color=color, alpha=0.2, linewidth=0)
    axes.set(xlabel="round", ylabel=ordinate)
    axes.grid(alpha=0.3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if groups:
        figure.legend(loc="outside lower left", ncols=columns, frameon=False, fontsize="small")
    figure.savefig(path, dpi=120)
