"""The figures of a report for a board: ROC curve, reliability diagram and decision curve, as SVG."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from problems.intervals import AUC
from problems.score_groups import ScoreGroups
from simulations.results.board import Board
from simulations.results.figure import save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE = (4.2, 3.9)  # inches: narrow enough for a phone


@dataclass(frozen=True)
class BoardFigure:
    """A figure, or the reason why it is missing.

    Attributes:
        title: The title.
        svg: The figure's SVG file; "" if it is missing.
        text: A sentence below the figure.
    """

    title: str
    svg: str
    text: str


def draw_board(board: Board) -> Iterator[BoardFigure]:
    """Yield the figures of a run.

    Args:
        board: The run's answers.
    """
    groups, everyone = board.groups, board.everyone
    few = f" The curve has {len(groups.scores)} groups of rows." if groups is not None else ""
    roc = "Share of events found against share of false alarms; the dotted line is chance."
    if groups is None:
        yield BoardFigure("ROC curve", "", board.no_curves)
    else:
        score = board.run.result.get("threshold", {}).get("score")
        yield BoardFigure("ROC curve", _plot(lambda axes: _roc(axes, groups, everyone, score)), roc + few)
    if (reason := board.no_probabilities) or groups is None:
        yield BoardFigure("Reliability", "", reason)
        yield BoardFigure("Decision curve", "", reason)
        return
    yield BoardFigure("Reliability", _plot(lambda axes: _reliability(axes, everyone)), board.calibration())
    benefit = "Net benefit: events found per row, minus false alarms weighted by the odds of the threshold probability."
    yield BoardFigure("Decision curve", _plot(lambda axes: _decision(axes, groups)), benefit)


def _plot(draw: Callable[[Axes], None]) -> str:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure, file = Figure(figsize=_SIZE, layout="constrained"), io.BytesIO()
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    draw(axes)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
    save(figure, file, "svg")
    return file.getvalue().decode()


def _roc(axes: Axes, groups: ScoreGroups, everyone: Mapping[str, Any], threshold: float | None) -> None:
    false, true = groups.roc()
    value, low, high = everyone[AUC]
    axes.plot([0, 1], [0, 1], color="C7", linestyle=":")
    axes.plot(false, true, color="C0", label=f"AUC {value:.3f} ({low:.3f} to {high:.3f})")
    if threshold is not None and (counts := everyone.get("confusion")):
        negatives, positives = groups.negatives.sum(), groups.positives.sum()
        point = counts["false_positives"] / negatives, counts["true_positives"] / positives
        axes.plot(*point, "o", color="C3", label="threshold")
    axes.set(xlabel="1 - specificity", ylabel="sensitivity", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))


def _reliability(axes: Axes, everyone: Mapping[str, Any]) -> None:
    points = [(one["predicted"], *one["observed"]) for one in everyone["reliability"] if one["observed"]]
    predicted, observed, low, high = np.array(points).reshape(-1, 4).T
    axes.plot([0, 1], [0, 1], color="C7", linestyle=":", label="perfect")
    axes.vlines(predicted, low, high, color="C0", linewidth=1, label="95 % interval")
    axes.plot(predicted, observed, color="C0", marker="o", markersize=4, label="model")
    axes.set(xlabel="predicted probability", ylabel="share of events", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))


def _decision(axes: Axes, groups: ScoreGroups) -> None:
    thresholds, model, _ = groups.decision()
    share = groups.positives.sum() / (groups.positives.sum() + groups.negatives.sum())
    grid = np.linspace(0, 0.99, 200)
    axes.plot(thresholds, model, color="C0", label="by the model")
    axes.plot(grid, share - (1 - share) * grid / (1 - grid), color="C1", linestyle="--", label="treat all")
    axes.axhline(0, color="C7", linestyle=":", label="treat none")
    axes.set(xlabel="threshold probability", ylabel="net benefit", ylim=(-0.15 * share, 1.1 * share), xlim=(0, 1))
