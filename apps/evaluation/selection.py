"""The choices that a run makes on validation rows: the best round, a threshold, and a calibration.

The run-config keys ``select-by``, ``threshold-at`` and ``calibration`` turn them on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np

from apps.evaluation.metric_names import add_suffix, better
from apps.evaluation.site_figures import choose_threshold
from apps.run_config.algorithm import Evaluator, RunConfig
from apps.run_config.settings import ConfigError
from methods.checks import check_both_classes
from payloads.handshake import SiteReport
from payloads.record import FloatArray
from problems.calibration import fit_calibration
from problems.errors import did_you_mean
from problems.least_cell import LEAST_CELL
from problems.tallies import Tally
from strategies.rounds.errors import raise_setup


@dataclass(frozen=True, eq=False)
class Selected:
    """The best model so far.

    Attributes:
        server_round: The round after which the model was measured. 0: the initial model.
        value: The metric's value.
        waited: The number of evaluations since that round. None of them was better.
        models: The flat arrays of the model and of the strategy's views, by suffix. "" is the model itself.
    """

    server_round: int
    value: float
    waited: int
    models: dict[str, list[FloatArray]]


@dataclass(frozen=True, eq=False)
class Choice:
    """A run's choices so far.

    Attributes:
        selected: The best model. None if the run does not select models.
        threshold: The threshold of the selected model or, without selection, of the newest model; see
            `choose_threshold`. With findings, such thresholds by the name of the finding. None: no threshold.
        calibration: The calibration of the same model, as an entry of result.json; with findings by name. None: no
            calibration.
    """

    selected: Selected | None = None
    threshold: dict[str, Any] | None = None
    calibration: dict[str, Any] | None = None

    def take(
        self,
        config: RunConfig,
        server_round: int,
        metrics: Mapping[str, float],
        models: Mapping[str, Sequence[FloatArray]],
        tallies: Mapping[str, Tally],
        fewest_rows: int = LEAST_CELL,
    ) -> Self:
        """Return the choice after an evaluation.

        Args:
            config: The run config.
            server_round: The evaluated round.
            metrics: The round's metrics.
            models: The round's models, as in `Selected`.
            tallies: The counted scores of the evaluated rows, see `Evaluator`.
            fewest_rows: The fewest rows of a step of an isotonic calibration.

        Raises:
            ConfigError: ``select-by`` is not among the metrics.
        """
        evaluation, metric = config.evaluation, config.evaluation.select_by
        selected, threshold, calibration = self.selected, self.threshold, self.calibration
        if metric:
            selected = select(selected, metric, server_round, metrics, models)
        if tallies and (selected is None or selected.server_round == server_round):
            threshold = _choose_each(tallies, partial(choose_threshold, config=config)) if evaluation.rule else None
            if evaluation.calibrates:
                fit = partial(fit_calibration, evaluation.calibration, min_rows=fewest_rows)
                calibration = _choose_each(tallies, lambda tally: fit(tally).to_json())
        return type(self)(selected, threshold, calibration)

    def ends(self, patience: int) -> bool:
        """Return whether a run with this patience ends now. Patience 0 never ends a run."""
        return bool(patience) and self.selected is not None and self.selected.waited >= patience


def _choose_each(tallies: Mapping[str, Tally], choose: Callable[[Tally], dict[str, Any]]) -> dict[str, Any]:
    chosen = {name: choose(tally) for name, tally in tallies.items()}
    return chosen.get("", chosen)


def choice_of(entry: dict[str, Any] | None, name: str) -> dict[str, Any] | None:
    """Return the choice for a finding, or for the single label, "".

    Args:
        entry: A field of `Choice`.
        name: The name of the finding.
    """
    return entry[name] if entry and name else entry


NO_CHOICE = Choice()


def select(
    best: Selected | None,
    metric: str,
    server_round: int,
    metrics: Mapping[str, float],
    models: Mapping[str, Sequence[FloatArray]],
) -> Selected | None:
    """Return the selected model after an evaluation. If the metric is equal, the earlier model stays selected.

    Args:
        best: The selected model before the evaluation, if any.
        metric: The metric that selects a model.
        server_round: The evaluated round.
        metrics: The round's metrics on validation rows.
        models: The round's models, as in `Selected`.

    Returns:
        The selected model. None if the metric has had no value yet, as for the metric of a view before round 1.

    Raises:
        ConfigError: The metric does not exist.
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
    """Return the metrics of models. The names of a view's metrics end in its suffix.

    Args:
        evaluator: The evaluator.
        models: The models, as in `Selected`, the model itself first.

    Raises:
        ValueError: A metric is not finite: the run has diverged.
    """
    # the model itself is evaluated last, so the evaluator's tally belongs to it
    metrics = {view: evaluator(models[view]) for view in [*models][::-1]}
    return {add_suffix(name, view): value for view in models for name, value in metrics[view].items()}


def check_test_rows(reports: Sequence[SiteReport]) -> None:
    """Check before round 1 that sites with their own files have test rows of both classes for the final metrics.

    Raises:
        SetupError: All sites together have test rows of only one class.
    """
    counts = [report.test_counts for report in reports if report.test_counts is not None]
    if counts:
        negatives, positives = np.sum(counts, axis=0).tolist()
        with raise_setup():
            check_both_classes("test rows", negatives, positives, "metrics need both", " at all sites together")
