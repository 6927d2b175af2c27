"""What a run chooses on validation rows: the model of the round that is best by ``select-by``, and its threshold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from apps.evaluation.metric_names import add_suffix, better
from apps.evaluation.site_figures import choose_threshold
from apps.run_config.algorithm import Evaluator, RunConfig
from apps.run_config.settings import ConfigError
from methods.checks import check_both_classes
from payloads.handshake import SiteReport
from payloads.record import FloatArray
from problems.errors import did_you_mean
from problems.tallies import Tally
from strategies.rounds.errors import raise_setup


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


@dataclass(frozen=True, eq=False)
class Choice:
    """What a run has chosen so far.

    Attributes:
        selected: the best model; None if the run selects none.
        threshold: of the selected model or, where none is selected, of the newest: see `choose_threshold`.
    """

    selected: Selected | None = None
    threshold: dict[str, Any] | None = None

    def take(
        self,
        config: RunConfig,
        server_round: int,
        metrics: Mapping[str, float],
        models: Mapping[str, Sequence[FloatArray]],
        tally: Tally | None,
    ) -> Self:
        """Return the choice after an evaluation.

        Args:
            config: says what is chosen.
            server_round: the round that was evaluated.
            metrics: its metrics.
            models: as in `Selected`.
            tally: of the evaluated rows.

        Raises:
            ConfigError: ``select-by`` is none of the metrics.
        """
        selected, threshold, metric = self.selected, self.threshold, config.evaluation.select_by
        if metric:
            selected = select(selected, metric, server_round, metrics, models)
        if config.evaluation.rule and tally is not None and (selected is None or selected.server_round == server_round):
            threshold = choose_threshold(tally, config)
        return type(self)(selected, threshold)

    def ends(self, patience: int) -> bool:
        """Whether a run with this patience ends; with 0 it never does."""
        return bool(patience) and self.selected is not None and self.selected.waited >= patience


NO_CHOICE = Choice()


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
            hint = did_you_mean(metric, metrics, "see docs/run-directory.md")
            raise ConfigError("select-by", got=repr(metric), allowed=", ".join(metrics), hint=hint)
        return best
    value = metrics[metric]
    if best is not None and better(metric)(best.value, value) == best.value:
        return replace(best, waited=best.waited + 1)
    return Selected(server_round, value, 0, {view: list(map(np.array, model)) for view, model in models.items()})


def measure(evaluator: Evaluator, models: Mapping[str, Sequence[FloatArray]]) -> dict[str, float]:
    """Return the metrics of models, those of a strategy's further views under their suffixes.

    Args:
        models: as in `Selected`, the model itself first.

    Raises:
        ValueError: some are not finite: the run has diverged.
    """
    # the model itself comes last, so that the evaluator's tally is of it
    found = {view: evaluator(models[view]) for view in [*models][::-1]}
    return {add_suffix(name, view): value for view in models for name, value in found[view].items()}


def check_test_rows(reports: Sequence[SiteReport]) -> None:
    """Check before round 1 that a selected model can be measured on the test rows of sites with files of their own.

    Raises:
        SetupError: all sites together have test rows of one class only.
    """
    counts = [report.test_counts for report in reports if report.test_counts is not None]
    if counts:
        negatives, positives = np.sum(counts, axis=0).tolist()
        with raise_setup():
            check_both_classes("test rows", negatives, positives, "metrics need both", " at all sites together")
