"""The picture of ``--baselines``: each site alone, all sites together, and all rows in one place."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from apps.run_directory.curves import RANKING
from simulations.results.figure import save

if TYPE_CHECKING:
    from simulations.baselines.comparison import Baselines

_SIZE = (8.0, 4.4)  # inches
_NAMED = 16  # the maximum number of sites whose names are below the axis
# the area of a dot in square points: the minimum, and the addition for the site with the most rows
_DOTS = (10.0, 50.0)


def draw_joining(baselines: Baselines, file: Path) -> None:
    """Draw a dot for each site that can train alone, sorted by its metric, and lines for the run and the pooled rows.

    Args:
        baselines: The results.
        file: The PNG file to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    metric, pooled = baselines.metric, baselines.pooled.metrics.get(baselines.metric)
    alone = sorted((one for one in baselines.alone if one.metrics), key=lambda one: one.metrics[metric])
    figure = Figure(figsize=_SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    value = baselines.federated.metrics[metric]
    text = f"all {len(baselines.alone)} sites together, rows stay at their sites: {value:.3f}"
    if baselines.interval is not None:
        low, high = baselines.interval
        axes.axhspan(low, high, color="C0", alpha=0.15, linewidth=0)
        text += f" (95 % interval {low:.3f} to {high:.3f})"
    axes.axhline(value, color="C0", label=text)
    if pooled is not None:
        axes.axhline(pooled, color="C1", linestyle="--", label=f"all rows in one place: {pooled:.3f}")
    if alone:
        ranks, values = np.arange(1, len(alone) + 1), [one.metrics[metric] for one in alone]
        rows = np.array([one.rows for one in alone])
        few, many = int(rows.min()), int(rows.max())
        label = f"a site alone: {min(values):.3f} to {max(values):.3f}, mean {np.mean(values):.3f}"
        label += f" ({few:,} to {many:,} rows; a larger dot has more)"
        axes.scatter(ranks, values, _DOTS[0] + _DOTS[1] * rows / many, color="C7", alpha=0.8, label=label, zorder=3)
        if len(alone) <= _NAMED:
            axes.set_xticks(ranks, [one.name.removesuffix(" alone") for one in alone])
        else:
            axes.set_xlabel("sites, sorted by their results alone")
        axes.set_xlim(0.5, len(alone) + 0.5)
    axes.set_ylabel(f"{RANKING.get(metric, metric)} on {baselines.where}")
    axes.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside lower left", frameon=False, fontsize="small")
    save(figure, file, "png")
