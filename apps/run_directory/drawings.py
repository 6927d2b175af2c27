"""The pictures of a finished run: its curves and, with ``site-metrics``, ROC, reliability and decision curves.

This module does not use pyplot, whose state belongs to the main thread.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from apps.run_directory.curves import draw_curves, draw_sites, escape, has_sites, rows_in_words
from apps.run_directory.statistics import Rows, decision_rows
from apps.run_directory.survival import draw_survival, read_survival
from payloads.site_names import label_entry
from problems.files import room_for
from problems.intervals import AUC
from problems.tallies import Tally

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# the largest number of sites in a legend
_NAMED = 8


def draw_run(
    folder: Path, lines: list[dict[str, Any]], result: Mapping[str, Any], view: str, tally: Tally | None
) -> None:
    """Draw all pictures of a run.

    Args:
        folder: The run directory.
        lines: The lines of metrics.jsonl.
        result: The content of result.json.
        view: The view whose curves are drawn. "" is the model itself.
        tally: The counted scores of the figures in the result, if it has figures.

    Raises:
        DiskFullError: The disk is full.
    """
    title = f"{result['strategy']} on {result['dataset']}"
    config = tomllib.loads((folder / "config.toml").read_text("utf-8"))
    chosen = result.get("selected", {}).get("round")
    with room_for(folder / "curves.png"):
        draw_curves(lines, folder / "curves.png", title, rows_in_words(config), view, chosen)
    if has_sites(lines):
        with room_for(folder / "sites.png"):
            draw_sites(lines, folder / "sites.png", title, rows_in_words(config), chosen, result.get("site_names"))
    if tally is not None and AUC in result["all"]:
        _draw(folder / "roc.png", title, result, tally, _draw_roc, "lower right")
        _draw(folder / "reliability.png", title, result, tally, _draw_reliability, "upper left")
    if "all" in (survival := read_survival(folder)):
        with room_for(folder / "survival.png"):
            where = "the test rows" if "test_metrics" in result else rows_in_words(config)
            draw_survival(folder / "survival.png", title, survival, where, config["time-column"] or "time")
    if points := decision_rows(result):
        _draw_decision(folder / "decision.png", title, result, points)


def _draw(
    path: Path,
    title: str,
    result: Mapping[str, Any],
    tally: Tally,
    draw: Any,
    legend: Literal["lower right", "upper left"],
) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="tab:gray", linestyle=":", linewidth=1)
    draw(axes, result, tally)
    axes.set(title=f"{title}, {result['figures_on']}", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.grid(alpha=0.3)
    axes.legend(loc=legend, frameon=False, fontsize="small")
    with room_for(path):
        figure.savefig(path, dpi=120)


def _lines(result: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
    """Yield the figures of each site and of all sites, with a style: thin lines for a site, a thick line for all."""
    for number, site in enumerate(result["sites"]):
        label = escape(label_entry(site)) if number < _NAMED else None
        yield site, {"linewidth": 0.8, "alpha": 0.7, "label": label}
    yield result["all"], {"linewidth": 2.5, "color": "black", "label": "all"}


def _draw_roc(axes: Axes, result: Mapping[str, Any], tally: Tally) -> None:
    tallies = {site.places[0]: site for site in tally.sites()}
    for figures, style in _lines(result):
        if figures[AUC] is None:
            continue
        rows = tallies[figures["partition"]] if "partition" in figures else tally.total()
        false, true = (
            np.append(0, np.cumsum(counts.sum(axis=0)[::-1])) / counts.sum()
            for counts in (rows.negatives, rows.positives)
        )
        if style["label"]:
            style["label"] += f", AUC {figures[AUC][0]:.3f}"
        axes.plot(false, true, **style)
    if threshold := result.get("threshold"):
        sensitivity, specificity = tally.rates(threshold["score"])
        axes.plot(1 - specificity, sensitivity, "o", color="tab:red", label=threshold["at"])
    axes.set(xlabel="false positive rate", ylabel="true positive rate")


def _draw_decision(path: Path, title: str, result: Mapping[str, Any], points: Rows) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    thresholds, model, everyone = (np.array([point[name] for point in points]) for name in points[0])
    axes.plot(thresholds, model, color="black", label="by the model")
    axes.plot(thresholds, everyone, linestyle="--", label="treat all")
    axes.axhline(0, color="tab:gray", linestyle=":", label="treat none")
    top = result["all"]["positives"] / result["all"]["rows"]
    axes.set(title=f"{title}, {result['figures_on']}", xlim=(0, 1), ylim=(-0.15 * top, 1.1 * top))
    axes.set(xlabel="threshold probability", ylabel="net benefit per row")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
    with room_for(path):
        figure.savefig(path, dpi=120)


def _draw_reliability(axes: Axes, result: Mapping[str, Any], tally: Tally) -> None:
    for figures, style in _lines(result):
        points = [(group["predicted"], *group["observed"]) for group in figures["reliability"]]
        predicted, observed, low, high = np.array(points).T
        axes.plot(predicted, observed, marker=".", **style)
        if "partition" not in figures:
            axes.vlines(predicted, low, high, color="black", linewidth=1)
    axes.set(xlabel="mean predicted probability", ylabel="share of positives")
