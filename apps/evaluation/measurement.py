"""The measurement of a run's models: evaluators, metrics after a round, the choice of a round, and final figures."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from apps.evaluation.bounded import BoundWatch
from apps.evaluation.models import RowEvaluation, ScoreEvaluator
from apps.evaluation.selection import Choice, measure
from apps.evaluation.site_figures import ROUND_FIGURES, describe, describe_round
from apps.evaluation.small_cells import SmallCells, left_out
from apps.run_config.algorithm import Evaluator, RunConfig
from apps.sites.rows import reads_own
from payloads.held_out import SCORE_COUNTS, TEST_SCORE_COUNTS
from payloads.record import FloatArray
from problems.binned_scores import codes
from problems.calibration import read_calibration
from problems.intervals import BRIER, ECE, point_figures
from problems.least_cell import LEAST_CELL
from problems.tallies import NOWHERE, Tally
from strategies.base import PayloadStrategy
from strategies.method import MethodStrategy
from strategies.rounds.replies import RoundReport


class Measurement:
    """Metrics of a run's models, and the choices that the run makes by them.

    Args:
        config: The run's configuration.
        strategy: The run's strategy.
        deployed: Whether sites are on other machines, so the server has none of their rows.
        warn: Records a warning about a round's model.

    Attributes:
        choice: The round and the threshold chosen so far.
        server_round: The round under way.
    """

    def __init__(
        self, config: RunConfig, strategy: PayloadStrategy, *, deployed: bool, warn: Callable[[int, str], None]
    ) -> None:
        self.config, self.strategy, self.deployed, self.warn = config, strategy, deployed, warn
        self.choice = Choice()
        self.server_round = 0
        self._bounds: BoundWatch | None = None

    @cached_property
    def cells(self) -> SmallCells:
        """The least cells of the run's sites, once the strategy has their reports."""
        return SmallCells.of(self.config, self.strategy.roster.reports)

    def evaluator(self, num_clients: int, *, test: bool = False) -> Evaluator:
        """Return the evaluator of the run's models.

        Args:
            num_clients: The number of clients.
            test: Whether to evaluate on the test rows of a run that has validation rows.

        Raises:
            ConfigError, DataError: The server needs data that are not named, or that cannot be loaded.
        """
        config, strategy, evaluation = self.config, self.strategy, self.config.algorithm.evaluation
        if not isinstance(evaluation, RowEvaluation):
            return evaluation(config, num_clients, pooled=not self.deployed)
        if not reads_own(config) or strategy.schema is None:
            return evaluation(config, num_clients, test=test)
        assert isinstance(strategy, MethodStrategy)
        phase = TEST_SCORE_COUNTS if test else SCORE_COUNTS
        # rows are on the right side of a threshold only if it is the edge of a bin
        threshold = self.choice.threshold
        kept = codes([threshold["score"]]).tolist() if test and threshold else []
        return evaluation.of_sites(
            config, strategy.schema, lambda x: strategy.count_scores(self.server_round, x, phase, kept)
        )

    def models(self, server_round: int, arrays: list[FloatArray]) -> dict[str, list[FloatArray]]:
        """Return the model after a round under "", and the strategy's other views under their suffixes."""
        return {"": self.strategy.output(server_round, arrays), **self.strategy.views()}

    def measure(self, evaluator: Evaluator, server_round: int, arrays: list[FloatArray]) -> dict[str, float]:
        """Return the metrics of the `models` after a round, and update the choice.

        If the round has figures of single sites, they are added to its report.

        Raises:
            ConfigError: ``select-by`` is not among the metrics.
            ValueError: A metric is not finite: the run has diverged.
        """
        models = self.models(server_round, arrays)
        metrics = evaluator.relate(self.strategy.measured) | measure(evaluator, models)
        least = max(LEAST_CELL, self.cells.of_counts(NOWHERE))
        self.choice = self.choice.take(self.config, server_round, metrics, models, evaluator.tally, least)
        if isinstance(evaluator, ScoreEvaluator) and evaluator.score_range and evaluator.sample_format:
            self._bounds = self._bounds or BoundWatch(evaluator.model, evaluator.sample_format.shape)
            if warning := self._bounds.take(*evaluator.score_range):
                self.warn(server_round, warning)
        if self.config.evaluation.has_figures(server_round, self.config.training) and evaluator.tally is not None:
            figures = describe_round(evaluator.tally, self.config, self.strategy.roster.reports)
            self.strategy.report.extras[ROUND_FIGURES] = figures
        return metrics

    def describe(
        self, evaluator: Evaluator, models: Mapping[str, list[FloatArray]], made: int
    ) -> tuple[dict[str, Any], Tally | None]:
        """Measure the run's final models, on unused test rows if the run has chosen anything on validation rows.

        Args:
            evaluator: The evaluator of the run's rounds.
            models: The selected models, or the last ones.
            made: The number of the last round.

        Returns:
            The entries of result.json about the models, and the scores from which its figures were computed, if any.
        """
        config, evaluation, best = self.config, self.config.evaluation, self.choice.selected
        found: dict[str, Any] = {}
        if best is not None:
            found["selected"] = {"round": best.server_round, "metric": evaluation.select_by, "value": best.value}
        self.server_round, self.strategy.report = made, RoundReport()
        if evaluation.tests:
            evaluator = self.evaluator(len(self.strategy.roster), test=True)
            found["test_metrics"] = measure(evaluator, models)
        elif evaluation.counts and evaluator.tally is None:  # the run was resumed after its last round
            measure(evaluator, models)
        if made < config.training.num_server_rounds:
            found["stopped"] = {"round": made, "patience": evaluation.patience}
        if not evaluation.counts or evaluator.tally is None:
            return found | left_out(self.cells.withheld), None
        tally = evaluator.tally
        if (entry := self.choice.calibration) is not None:
            calibrated = replace(tally, probability_of=read_calibration(entry))
            figures = {name: point_figures(rows) for name, rows in (("before", tally), ("after", calibrated))}
            found["calibration"] = entry | {
                name: {figure: every[figure] for figure in (BRIER, ECE)} for name, every in figures.items()
            }
            tally = calibrated
        return found | describe(tally, config, self.strategy.roster.reports, self.choice.threshold), tally
