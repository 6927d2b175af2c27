"""The measurement of one run's models: metrics after each round, the choice of a round, and the final figures.

An `Evaluator` computes metrics, either from rows of the server or from histograms of scores that the sites send.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from logging import WARNING
from typing import Any

from flwr.common import log

from apps.evaluation.after import IMPORTANCE, SUBGROUPS, describe_groups, describe_importance
from apps.evaluation.bounded import BoundWatch, StallWatch
from apps.evaluation.metric_names import ROUND_FIGURES
from apps.evaluation.models import RowEvaluation, ScoreEvaluator
from apps.evaluation.networks import add_errors
from apps.evaluation.personal import SITE_MODELS, describe_models
from apps.evaluation.selection import Choice, choice_of, measure
from apps.evaluation.sets import column_names, sets_of_run
from apps.evaluation.site_figures import describe, describe_round, has_probabilities
from apps.evaluation.site_times import SiteTimeEvaluator, check_counted_times
from apps.evaluation.small_cells import SmallCells, left_out
from apps.evaluation.survival import describe_survival
from apps.evaluation.times import TimeEvaluator
from apps.run_config.algorithm import Evaluator, RunConfig
from apps.sites.rows import reads_own
from payloads.held_out import (
    FINDING_COUNTS,
    SCORE_COUNTS,
    TEST_FINDING_COUNTS,
    TEST_SCORE_COUNTS,
    TEST_TIME_COUNTS,
    TEST_TUNED_COUNTS,
    TIME_COUNTS,
    TUNED_COUNTS,
)
from payloads.record import FloatArray
from problems.binned_scores import codes
from problems.calibration import read_calibration
from problems.intervals import BRIER, ECE, point_figures
from problems.least_cell import LEAST_CELL
from problems.models.vectors import with_end
from problems.tallies import NOWHERE, Tally
from strategies.base import PayloadStrategy
from strategies.method import MethodStrategy
from strategies.rounds.replies import RoundReport
from strategies.score_counts import count_scores
from strategies.time_counts import count_times


class Measurement:
    """Metrics of a run's models, and the choices that the run makes from these metrics.

    Args:
        config: The run config.
        strategy: The run's strategy.
        deployed: Whether the sites are on other machines, so the server does not have their rows.
        warn: Function of a round and a text. It records a warning about the round's model.

    Attributes:
        choice: The round, the threshold and the calibration chosen so far.
        server_round: The current round.
        final: The evaluator of the final models. None before `describe`.
    """

    final: Evaluator | None = None

    def __init__(
        self, config: RunConfig, strategy: PayloadStrategy, *, deployed: bool, warn: Callable[[int, str], None]
    ) -> None:
        self.config, self.strategy, self.deployed, self.warn = config, strategy, deployed, warn
        self.choice = Choice()
        self.server_round = 0
        self._bounds: BoundWatch | None = None
        self._stall = StallWatch()

    @cached_property
    def cells(self) -> SmallCells:
        """The smallest counts of rows that the sites reveal (`SmallCells`). Needs the sites' reports."""
        return SmallCells.of(self.config, self.strategy.roster.reports)

    def evaluator(self, num_clients: int, *, test: bool = False) -> Evaluator:
        """Return the evaluator of the run's models.

        Args:
            num_clients: The number of clients.
            test: Whether to evaluate on the test rows even if the run has validation rows.

        Raises:
            ConfigError, DataError: The server needs data that the run config does not name, or that cannot be loaded.
        """
        config, strategy, evaluation = self.config, self.strategy, self.config.algorithm.evaluation
        if not isinstance(evaluation, RowEvaluation):
            return evaluation(config, num_clients, pooled=not self.deployed)
        if not reads_own(config) or strategy.schema is None:
            return evaluation(config, num_clients, test=test)
        assert isinstance(strategy, MethodStrategy)
        check_counted_times(config, strategy.roster.reports)
        phase, timed = (TEST_SCORE_COUNTS, TEST_TIME_COUNTS) if test else (SCORE_COUNTS, TIME_COUNTS)
        names = config.data.findings
        if names:
            phase = TEST_FINDING_COUNTS if test else FINDING_COUNTS
        # The sites count scores by bins. The threshold must be an edge of a bin, so each row is on the correct side.
        thresholds = [choice_of(self.choice.threshold, name) for name in names or ("",)]
        edges = [codes([each["score"]]).tolist() if test and each else [] for each in thresholds]
        return evaluation.of_sites(
            config,
            strategy.schema,
            lambda x: count_scores(strategy, self.server_round, x, phase, edges, names),
            lambda x: add_errors(strategy, self.server_round, x, phase),
            lambda x: count_times(strategy, self.server_round, x, timed),
        )

    def models(self, server_round: int, arrays: list[FloatArray]) -> dict[str, list[FloatArray]]:
        """Return the model after a round under the key "", and the strategy's other views under their suffixes.

        A view is another model that the strategy derives from its state, such as an average (`PayloadStrategy.views`).
        """
        frozen, views = self.strategy.num_frozen, self.strategy.views()
        exact = {view: [x, *(with_end(part, arrays[1], frozen) for part in more)] for view, (x, *more) in views.items()}
        return {"": self.strategy.output(server_round, arrays), **exact}

    def measure(self, evaluator: Evaluator, server_round: int, arrays: list[FloatArray]) -> dict[str, float]:
        """Return the metrics of the `models` after a round, and update the choice.

        The figures of single sites, if the round has them, are added to the round's report.

        Raises:
            ConfigError: ``select-by`` is not among the metrics.
            ValueError: A metric is not finite: the run has diverged.
        """
        models = self.models(server_round, arrays)
        metrics = evaluator.relate(self.strategy.measured) | measure(evaluator, models)
        fewest_rows = max(LEAST_CELL, self.cells.of_counts(NOWHERE))
        self.choice = self.choice.take(self.config, server_round, metrics, models, evaluator.tallies, fewest_rows)
        if isinstance(evaluator, ScoreEvaluator) and evaluator.score_range and evaluator.sample_format:
            self._bounds = self._bounds or BoundWatch(evaluator.model, evaluator.sample_format.shape)
            if warning := self._bounds.take(*evaluator.score_range):
                self.warn(server_round, warning)
            if warning := self._stall.take(evaluator.mean_slope, self.strategy.steps()):
                log(WARNING, "round %d: %s", server_round, warning)
        if self.config.evaluation.has_figures(server_round, self.config.training) and "" in evaluator.tallies:
            figures = describe_round(evaluator.tallies[""], self.config, self.strategy.roster.reports)
            self.strategy.report.extras[ROUND_FIGURES] = figures
        return metrics

    def describe(
        self, evaluator: Evaluator, models: Mapping[str, list[FloatArray]], last_round: int
    ) -> tuple[dict[str, Any], Tally | None]:
        """Measure the run's final models. If choices were made on validation rows, measure on the unused test rows.

        Args:
            evaluator: The evaluator of the run's rounds.
            models: The models of the selected round, or of the last round.
            last_round: The number of the last round.

        Returns:
            The entries of result.json about the models; and the counted scores from which the figures among these
            entries were computed, if the run has figures.
        """
        evaluation, best = self.config.evaluation, self.choice.selected
        entries: dict[str, Any] = {}
        if best is not None:
            entries["selected"] = {"round": best.server_round, "metric": evaluation.select_by, "value": best.value}
        self.server_round, self.strategy.report = last_round, RoundReport()
        self.final = evaluator
        if evaluation.tests:
            evaluator = self.final = self.evaluator(len(self.strategy.roster), test=True)
            entries["test_metrics"] = measure(evaluator, models)
        elif evaluation.counts and not evaluator.tallies:  # the run was resumed after its last round
            measure(evaluator, models)
        if last_round < self.config.training.num_server_rounds:
            entries["stopped"] = {"round": last_round, "patience": evaluation.patience}
        if not evaluation.counts or not evaluator.tallies:
            return entries | left_out(self.cells.withheld), None
        if "" in evaluator.tallies:
            figures, tally = self._describe_label("", evaluator.tallies[""])
            entries |= figures
            if self.config.evaluation.fine_tune_steps:
                entries[SITE_MODELS] = self._describe_personal(evaluator, models[""])
            return entries | self._describe_sets(evaluator, models[""], tally, entries), tally
        found = {name: self._describe_label(name, tally)[0] for name, tally in evaluator.tallies.items()}
        return entries | {"findings": found} | left_out(self.cells.withheld), None

    def _describe_personal(self, evaluator: Evaluator, arrays: list[FloatArray]) -> list[dict[str, Any]]:
        """Let each site fine-tune a model, and return the figures of both models on the site's rows."""
        config, strategy = self.config, self.strategy
        assert isinstance(strategy, MethodStrategy)
        phase = TEST_TUNED_COUNTS if config.evaluation.tests else TUNED_COUNTS
        common = evaluator.tallies[""]
        (tuned,) = count_scores(strategy, self.server_round, arrays, phase)
        return describe_models(common, tuned, config, strategy.roster.reports)

    def _describe_label(self, name: str, tally: Tally) -> tuple[dict[str, Any], Tally]:
        """Return the entries about a finding, or about the single label, "", and its tally with the calibration."""
        entries: dict[str, Any] = {}
        if (entry := choice_of(self.choice.calibration, name)) is not None:
            calibrated = replace(tally, probability_of=read_calibration(entry))
            figures = {time: point_figures(rows) for time, rows in (("before", tally), ("after", calibrated))}
            entries["calibration"] = entry | {
                time: {figure: every[figure] for figure in (BRIER, ECE)} for time, every in figures.items()
            }
            tally = calibrated
        threshold = choice_of(self.choice.threshold, name)
        return entries | describe(tally, self.config, self.strategy.roster.reports, threshold), tally

    def describe_survival(self, arrays: list[FloatArray], entries: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the content of survival.json, after `describe`. None: the rows have no times.

        Args:
            arrays: The final model.
            entries: The other entries of result.json.
        """
        if not isinstance(self.final, TimeEvaluator | SiteTimeEvaluator):
            return None
        return describe_survival(self.final, arrays, entries, self.cells, self.strategy.roster.site_names)

    def _describe_sets(
        self, evaluator: Evaluator, arrays: list[FloatArray], tally: Tally, entries: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the entries about subgroups and importance, if the run config asks for them.

        Args:
            evaluator: The evaluator of the final model.
            arrays: The final model.
            tally: The counted scores of all rows.
            entries: The other entries of result.json.
        """
        config, repeats = self.config, self.config.evaluation.importance
        if not (evaluator.groups or repeats):
            return {}
        assert isinstance(evaluator, ScoreEvaluator)
        sets = sets_of_run(config, self.strategy, evaluator, self.server_round, arrays, tally)
        found: dict[str, Any] = {}
        if evaluator.groups:
            chosen = self.choice.threshold
            found[SUBGROUPS] = describe_groups(
                sets,
                evaluator.groups,
                self.cells.of_counts(NOWHERE),
                lambda each: replace(each, probability_of=tally.probability_of),
                None if chosen is None else chosen["score"],
                probable=has_probabilities(config),
                confusion_known=bool(entries["all"].get("confusion")),
            )
        if repeats:
            found[IMPORTANCE] = describe_importance(sets, column_names(evaluator), repeats, tally.total())
        return found
