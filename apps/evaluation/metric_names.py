"""Names of metrics: which of them the log shows, which values are better, and the suffixes of views."""

from collections.abc import Mapping
from typing import Any

# Metrics in a round's log line, in this order.
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
# Metrics where less is better.
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
# Log formats of metrics that are not of order one.
FORMATS = {"grad_phi_sq": ".3e", "optimality": ".3e", "suboptimality": ".3e", "nonzeros": ".0f"}


def better(metric: str) -> Any:
    """``min`` or ``max``, whichever is better for a metric; also for a view's, such as ``loss_inner``."""
    return min if metric.startswith(LOWER) else max


def add_suffix(name: str, view: str) -> str:
    """A metric's name in a view of `PayloadStrategy.views`; "" is the model itself."""
    return f"{name}_{view}" if view else name


def format_metrics(metrics: Mapping[str, float], view: str = "") -> str:
    """The metrics of a log line, as text: those of a view, or of the model where the view has none yet."""
    names = {add_suffix(name, view): name for name in SHOWN}
    if names.keys().isdisjoint(metrics):
        names = {name: name for name in SHOWN}
    return "  ".join(
        f"{name} {metrics[name]:{FORMATS.get(plain, '.4f')}}" for name, plain in names.items() if name in metrics
    )
