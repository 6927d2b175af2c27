"""Names of metrics: their order in the log, whether lower values are better, and the suffixes of views.

Also the names of the other entries of a line of metrics.jsonl.

A view is another model that a strategy derives from its state (`PayloadStrategy.views`). Its metrics have its suffix.
"""

from collections.abc import Mapping
from typing import Any

# The seconds of a vertical run's round without joining and evaluation, and the key of a round's figures.
TRAINING_SECONDS, ROUND_FIGURES = "training_seconds", "figures"
# The entries of each line of metrics.jsonl that are not metrics.
BOOKKEEPING = frozenset(
    [
        *("round", "bytes_up", "bytes_down", "clients_asked", "clients_answered"),
        *("dropped", "state_lost", "seconds", "server_seconds"),
    ]
)
# Further such entries of some runs: also spent privacy budgets, shortened updates, a round's simulated duration, and
# the losses of FGDRO's training batches.
OF_SOME_RUNS = frozenset(
    [
        *(TRAINING_SECONDS, "epsilon", "pool_epsilon", ROUND_FIGURES),
        *("bounded_clients", "simulated_seconds", "worst_site_loss", "mean_site_loss"),
    ]
)
# Metrics of rows with times to an event.
OF_TIMES = ("concordance", "concordance_uno", "auc_horizon", "brier_horizon")
# Metrics in a round's log line, in this order.
SHOWN = (
    "auc",
    "pauc_fpr30",
    "pauc_fpr50",
    "concordance",
    "auc_horizon",
    "brier_horizon",
    "rmse",
    "mae",
    "r2",
    "deviance",
    "grad_phi_sq",
    "optimality",
    "suboptimality",
    "objective",
    "nonzeros",
    "loss",
)
# Metrics of which lower values are better.
LOWER = (
    "loss",
    "grad_phi_sq",
    "optimality",
    "suboptimality",
    "objective",
    "stationarity",
    "nonzeros",
    "rmse",
    "mae",
    "deviance",
    "brier_horizon",
    TRAINING_SECONDS,
)
# Log formats of metrics that are not of order one.
FORMATS = {"grad_phi_sq": ".3e", "optimality": ".3e", "suboptimality": ".3e", "nonzeros": ".0f"}


def better(metric: str) -> Any:
    """Return the function that chooses the better of several values of a metric: ``min`` or ``max``.

    Args:
        metric: The metric's name, also with a view's suffix, such as ``loss_inner``.
    """
    return min if metric.startswith(LOWER) else max


def add_suffix(name: str, view: str) -> str:
    """Return a metric's name in a view of `PayloadStrategy.views`. The view "" is the model itself."""
    return f"{name}_{view}" if view else name


def format_metrics(metrics: Mapping[str, float], view: str = "") -> str:
    """Return the metrics of a log line: the names in `SHOWN`, preceded by accuracy if the metrics contain no AUC.

    Args:
        metrics: The values by name. Names that are not in `SHOWN` are left out.
        view: The view whose metrics are shown. If it has no metrics yet, the model's metrics are shown. "": the model.
    """
    shown = SHOWN if any(name.startswith("auc") for name in metrics) else ("accuracy", *SHOWN)
    names = {add_suffix(name, view): name for name in shown}
    if names.keys().isdisjoint(metrics):
        names = {name: name for name in shown}
    return "  ".join(
        f"{name} {format_metric(plain, metrics[name])}" for name, plain in names.items() if name in metrics
    )


def format_metric(name: str, value: float) -> str:
    """Return a metric's value as text for the log.

    Args:
        name: The metric's name, without a view's suffix.
        value: The value.
    """
    return f"{value:{FORMATS.get(name, '.4f')}}"
