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
    """Return the function that chooses the better of some values: the built-in ``min`` or ``max``.

    Args:
        metric: its name, also with a view's suffix, such as ``loss_inner``.
    """
    return min if metric.startswith(LOWER) else max


def add_suffix(name: str, view: str) -> str:
    """A metric's name in a view of `PayloadStrategy.views`; "" is the model itself."""
    return f"{name}_{view}" if view else name


def format_metrics(metrics: Mapping[str, float], view: str = "") -> str:
    """Write the metrics of a log line: those in `SHOWN`, in that order, and before them accuracy if there is no AUC.

    Args:
        metrics: name -> value; others may be among them.
        view: whose metrics to show, or the model's where the view has none yet; "" is the model itself.
    """
    shown = SHOWN if any(name.startswith("auc") for name in metrics) else ("accuracy", *SHOWN)
    names = {add_suffix(name, view): name for name in shown}
    if names.keys().isdisjoint(metrics):
        names = {name: name for name in shown}
    return "  ".join(
        f"{name} {format_metric(plain, metrics[name])}" for name, plain in names.items() if name in metrics
    )


def format_metric(name: str, value: float) -> str:
    """Write a metric's value as the log does.

    Args:
        name: of the metric, without a view's suffix.
    """
    return f"{value:{FORMATS.get(name, '.4f')}}"
