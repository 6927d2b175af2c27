"""The selected model of a run: that of the round with the best value of ``select-by`` on validation rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from apps.evaluation.metric_names import add_suffix, better
from apps.run_config.algorithm import Evaluator
from apps.run_config.settings import ConfigError
from payloads.handshake import SiteReport
from payloads.record import FloatArray
from problems.errors import did_you_mean
from strategies.rounds.errors import check_both_classes


@dataclass(frozen=True, eq=False)
class Selected:
    """The best model so far.

    Attributes:
        server_round: the round after which it was measured; 0: it is the initial model.
        value: of the metric.
        waited: evaluations since then, of which none was better.
        models: its flat arrays, and those of the strategy's further views by their suffix; "" is the model itself.
    """

    server_round: int
    value: float
    waited: int
    models: dict[str, list[FloatArray]]

    def waits(self, patience: int) -> bool:
        """Whether a run with this patience goes on; with 0 it always does."""
        return not patience or self.waited < patience


def select(
    best: Selected | None,
    metric: str,
    server_round: int,
    metrics: Mapping[str, float],
    models: Mapping[str, Sequence[FloatArray]],
) -> Selected | None:
    """Take an evaluation into account; of equal values that of the earlier round stays.

    Args:
        best: the selected model before it, if any.
        metric: by which a model is selected.
        server_round: the round that was evaluated.
        metrics: its metrics on validation rows.
        models: as in `Selected`.

    Returns:
        The selected model after it; None if no evaluation so far has had the metric, as before round 1 those of a view.

    Raises:
        ConfigError: there is no such metric.
    """
    if metric not in metrics:
        if server_round or not any(metric.startswith(f"{name}_") for name in metrics):
            allowed = ", ".join(metrics) + did_you_mean(metric, metrics)
            raise ConfigError("select-by", got=repr(metric), allowed=allowed, hint="see docs/run-directory.md")
        return best
    value = metrics[metric]
    if best is not None and better(metric)(best.value, value) == best.value:
        return replace(best, waited=best.waited + 1)
    return Selected(server_round, value, 0, {view: list(map(np.array, model)) for view, model in models.items()})


def measure(evaluator: Evaluator, models: Mapping[str, Sequence[FloatArray]]) -> dict[str, float]:
    """Return the metrics of models, those of a strategy's further views under their suffixes.

    Args:
        models: as in `Selected`.

    Raises:
        ValueError: some are not finite: the run has diverged.
    """
    return {add_suffix(name, view): value for view, one in models.items() for name, value in evaluator(one).items()}


def check_test_rows(reports: Sequence[SiteReport]) -> None:
    """Check before round 1 that a selected model can be measured on the test rows of sites with files of their own.

    Raises:
        SetupError: all sites together have test rows of one class only.
    """
    counts = [report.test_counts for report in reports if report.test_counts is not None]
    if counts:
        negatives, positives = np.sum(counts, axis=0).tolist()
        check_both_classes("test rows", negatives, positives, "metrics need both", " at all sites together")
