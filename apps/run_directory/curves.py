"""Pictures of a run's metrics by round: curves.png of all rows, and sites.png of each site.

This module does not use pyplot, whose state belongs to the main thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.evaluation.metric_names import ROUND_FIGURES, add_suffix
from payloads.site_names import label_site
from problems.data import OWN
from problems.intervals import AUC, BRIER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RANKING = {
    "auc": "AUC",
    "pauc_fpr50": "partial AUC, FPR up to 0.5",
    "pauc_fpr30": "partial AUC, FPR up to 0.3",
    "average_precision": "average precision",
}
# the metrics of rows with times, of which larger values are better
CONCORDANCES = {
    "concordance": "concordance",
    "concordance_uno": "concordance (Uno)",
    "auc_horizon": "AUC until the horizon",
}
# the errors of a run whose labels are numbers
ERRORS = {"rmse": "root mean squared error", "mae": "mean absolute error"}
# the largest number of sites with separate curves
_MOST_SITES = 12


def rows_in_words(config: Mapping[str, Any]) -> str:
    """Describe the rows on which a run evaluates its models.

    Args:
        config: The keys of its config.toml.
    """
    if config.get("validation-fraction"):
        return "validation rows"
    if config.get("partition") == OWN and not config.get("data-dir"):
        return "rows held out by the sites"
    return "the test set"


def draw_curves(
    lines: Sequence[Mapping[str, Any]],
    path: Path,
    title: str,
    rows: str,
    view: str = "",
    selected: int | None = None,
) -> None:
    """Draw metrics by round as a PNG file.

    Args:
        lines: The lines of metrics.jsonl.
        path: The file.
        title: The title.
        rows: A description of the evaluated rows, from `rows_in_words`.
        view: The view whose metrics are drawn. "" is the model itself.
        selected: The round of the selected model, which is marked. None: no selected model.
    """
    figure, left, right = _panels((3, 2))
    shown = next(
        (each for each in (RANKING, CONCORDANCES) if any(add_suffix(next(iter(each)), view) in line for line in lines)),
        ERRORS,
    )
    ranks = shown is not ERRORS
    for metric, label in shown.items():
        name = add_suffix(metric, view)
        points = [(line["round"], line[name]) for line in lines if name in line]
        if points:
            left.plot(*zip(*points, strict=True), label=label, marker="." if len(points) < 40 else None)
    loss = add_suffix("loss", view)
    losses = [(line["round"], line[loss]) for line in lines if loss in line]
    if losses:
        right.plot(*zip(*losses, strict=True), color="tab:gray", marker="." if len(losses) < 40 else None)
    left.set(xlabel="round", ylabel=f"on {rows}", title=f"{title}, {view}" if view else title)
    right.set(xlabel="round", ylabel="loss", title=f"objective on {rows}")
    if left.lines:
        left.legend(loc="lower right" if ranks else "upper right", frameon=False)
    if left.lines and not ranks:
        left.set_yscale("log")
    _mark(selected, left, right)
    figure.savefig(path, dpi=120)


def has_sites(lines: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the lines have figures for `draw_sites`."""
    return any(line[ROUND_FIGURES]["sites"] for line in lines if ROUND_FIGURES in line)


def draw_sites(
    lines: Sequence[Mapping[str, Any]],
    path: Path,
    title: str,
    rows: str,
    selected: int | None = None,
    names: Mapping[str, str] | None = None,
) -> None:
    """Draw each site's AUC and Brier score by round as a PNG file. Of many sites, draw only the worst and the best.

    Args:
        lines: The lines of metrics.jsonl.
        path: The file.
        title: The title.
        rows: A description of the evaluated rows, from `rows_in_words`.
        selected: The round of the selected model, which is marked. None: no selected model.
        names: The names of sites, by partition id as text.
    """
    from matplotlib import colormaps

    figure, *panels = _panels((1, 1))
    rounds = [(line["round"], line[ROUND_FIGURES]) for line in lines if ROUND_FIGURES in line]
    for axes, name, label in zip(panels, (AUC, BRIER), (RANKING[AUC], "Brier score"), strict=True):
        curves: dict[int, dict[int, float]] = {}
        for server_round, figures in rounds:
            for site in figures["sites"]:
                if site[name] is not None:
                    curves.setdefault(site["partition"], {})[server_round] = site[name]
        for partition in _choose(curves):
            color = colormaps["tab20"](partition % 20)
            axes.plot(
                *zip(*curves[partition].items(), strict=True),
                color=color,
                linewidth=1,
                marker=".",
                label=escape(label_site(partition, names)),
            )
        everyone = [(server_round, figures["all"][name]) for server_round, figures in rounds]
        axes.plot(*zip(*everyone, strict=True), linewidth=2.5, color="black", label="all")
        few = len(curves) <= _MOST_SITES
        axes.set(xlabel="round", ylabel=f"{label} on {rows}", title=title if few else f"{title}: lowest and highest")
        axes.legend(frameon=False, fontsize="small")
    _mark(selected, *panels)
    figure.savefig(path, dpi=120)


def escape(label: str) -> str:
    """Return a site's label without the signs of a formula, and visible in a legend, which hides a leading "_"."""
    return label.replace("$", r"\$").lstrip("_")


def _choose(curves: Mapping[int, Mapping[int, float]]) -> list[int]:
    """Return the sites to draw: all, or of many the lowest and the highest in the last round with figures."""
    if len(curves) <= _MOST_SITES:
        return sorted(curves)
    last = max(max(curve) for curve in curves.values())
    measured = [site for site, curve in curves.items() if last in curve]
    return [choose(measured, key=lambda site: curves[site][last]) for choose in (min, max)]


def _panels(ratios: tuple[int, int]) -> tuple[Figure, Axes, Axes]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=ratios)
    return figure, left, right


def _mark(selected: int | None, *panels: Axes) -> None:
    """Mark the selected round, if any, and label only whole rounds."""
    from matplotlib.ticker import MaxNLocator

    for axes in panels:
        if selected is not None:
            axes.axvline(selected, color="black", linestyle=":", linewidth=1)
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
