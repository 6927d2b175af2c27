"""The picture of a run: its ranking metrics and its loss, by round."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apps.evaluation.metric_names import add_suffix
from problems.data import OWN

RANKING = {
    "auc": "AUC",
    "pauc_fpr50": "partial AUC, FPR up to 0.5",
    "pauc_fpr30": "partial AUC, FPR up to 0.3",
    "average_precision": "average precision",
}


def rows_in_words(config: Mapping[str, Any]) -> str:
    """Say on which rows a run evaluates its models.

    Args:
        config: the keys of its config.toml.
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
    """Draw metrics by round as one PNG.

    It does without pyplot, whose state belongs to the main thread.

    Args:
        lines: those of metrics.jsonl.
        rows: what the metrics were measured on, see `rows_in_words`.
        view: whose metrics to draw; "" is the model itself.
        selected: the round whose model was selected, to be marked; None: none was.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for metric, label in RANKING.items():
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
        left.legend(loc="lower right", frameon=False)
    for axes in (left, right):
        if selected is not None:
            axes.axvline(selected, color="black", linestyle=":", linewidth=1)
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path, dpi=120)
