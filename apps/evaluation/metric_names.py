"""The names of metrics: how a log shows them, which of two values is better, what a view adds to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What the log of a round shows, in this order.
SHOWN = (
    "auc",
    "pauc_fpr30",
    "pauc_fpr50",
    "rmse",
    "grad_phi_sq",
    "optimality",
    "suboptimality",
    "objective",
    "nonzeros",
    "loss",
)
# Metrics of which less is better.
LOWER = (
    "loss",
    "grad_phi_sq",
    "optimality",
    "suboptimality",
    "objective",
    "stationarity",
    "nonzeros",
    "rmse",
    "training_seconds",
)
# How a log writes those that are not of order one.
FORMATS = {"grad_phi_sq": ".3e", "optimality": ".3e", "suboptimality": ".3e", "nonzeros": ".0f"}


def better(metric: str) -> Any:
    """``min`` or ``max``, whichever is better for a metric, of a view too (``loss_inner``)."""
    return min if metric.startswith(LOWER) else max


def suffixed(name: str, view: str) -> str:
    """A metric's name in a view of `PayloadStrategy.views`; "" is the model itself."""
    return f"{name}_{view}" if view else name


def shown(metrics: Mapping[str, float], view: str = "") -> str:
    """The metrics a line of the log has room for: those of a view, or of the model where the view has none yet."""
    names = {suffixed(name, view): name for name in SHOWN}
    if names.keys().isdisjoint(metrics):
        names = {name: name for name in SHOWN}
    return "  ".join(
        f"{name} {metrics[name]:{FORMATS.get(plain, '.4f')}}" for name, plain in names.items() if name in metrics
    )
