"""The round loop: what Flower's ``Strategy.start`` does, plus records, checkpoints, resume and server timing."""

import time
from collections.abc import Mapping
from functools import cached_property
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.common import log
from flwr.serverapp import Grid

from apps.evaluation.bounded import BoundWatch
from apps.evaluation.labels import describe_labels
from apps.evaluation.metric_names import add_suffix
from apps.evaluation.models import RowEvaluation, ScoreEvaluator
from apps.evaluation.selection import Choice, check_test_rows, measure
from apps.evaluation.site_figures import ROUND_FIGURES, describe, describe_round
from apps.evaluation.small_cells import SmallCells, left_out, warn_of_withheld
from apps.evaluation.starting import starting_point
from apps.run_config.algorithm import Evaluator, RunConfig
from apps.run_config.settings import ConfigError
from apps.run_directory.artifacts import RunDirectory
from apps.run_directory.checkpoints import Checkpoint
from apps.run_directory.history import History
from apps.run_directory.same_data import compare_data, record_data, record_sites
from apps.sites import resources
from apps.sites.rows import reads_own
from apps.sites.state_store import CHECKPOINT_ROUND, STATE_DIR
from payloads.flower_internals import DEPLOYMENT_GRID, PULL_INTERVAL, SIMULATION_GRID
from payloads.held_out import SCORE_COUNTS, TEST_SCORE_COUNTS
from payloads.record import FloatArray, PayloadError
from payloads.wire import RUN_TOKEN, check_model, model_arrays, model_record
from problems.binned_scores import codes
from problems.data.preprocessing import describe_text
from problems.tallies import Tally
from strategies.base import PayloadStrategy
from strategies.method import MethodStrategy
from strategies.rounds.errors import StrategyError
from strategies.rounds.handshake import Roster
from strategies.rounds.replies import RoundReport, SiteStates

DEPLOYMENT = "deployment"
FLOWER_SIMULATION = "flower-simulation"
ENGINES = {SIMULATION_GRID: FLOWER_SIMULATION, DEPLOYMENT_GRID: DEPLOYMENT}


def engine_of(grid: Grid) -> str:
    """Return the name of what carries a run's messages.

    Returns:
        "in-process", "ray", "flower-simulation" or "deployment"; of an unknown grid, the name of its class.
    """
    return str(getattr(grid, "engine", ENGINES.get(type(grid).__name__, type(grid).__name__)))


class Training:
    """One run from its first handshake to its result."""

    def __init__(self, config: RunConfig, grid: Grid, directory: RunDirectory) -> None:
        self.config = config
        self.grid = grid
        self.directory = directory
        self.strategy: PayloadStrategy = config.algorithm.strategy(config.training, config.family)
        self.strategy.privacy = config.privacy
        rounds = config.training.num_server_rounds
        self.history = History(directory, rounds, self.strategy.headline, self.strategy.steps())
        self.choice = Choice()
        self.bounds: BoundWatch | None = None
        self.engine = engine_of(grid)
        # the round under way, and the last one that was made
        self.server_round = self.made = 0

    def run(self) -> dict[str, Any]:
        """Train to the last round; returns what result.json holds."""
        config = self.config
        resources.hold_threads(config.training)
        if hasattr(self.grid, PULL_INTERVAL):
            setattr(self.grid, PULL_INTERVAL, 0.005)  # the default of 0.1 s is most of a short round
        roster = self.join()
        log(INFO, "%s on %s: %d sites, engine %s", config.run.strategy, config.data.dataset, len(roster), self.engine)
        if config.evaluation.tests:
            check_test_rows(roster.reports)
        warn_of_withheld(config, roster.reports)
        evaluator = self.evaluator(len(roster))
        log(INFO, "%s; results in %s", evaluator.summary, self.directory.path)
        lines = describe_labels(config.data, evaluator.sample_format, roster.class_counts)
        for line in (*evaluator.notes, *lines):
            log(INFO, "%s", line)
        if evaluator.columns is not None and (dates := evaluator.columns.dates):
            log(INFO, "dates become days since 1970-01-01: %s", ", ".join(map(repr, dates)))
        for line in [] if evaluator.columns is None else describe_text(evaluator.columns):
            log(INFO, "%s", line)
        if config.warning:
            log(WARNING, "%s", config.warning)
        self.strategy.layout = evaluator.layout
        arrays = self.resume(evaluator.start()) if config.run.resume else starting_point(config, evaluator)
        first_round = self.made
        self.offer_state_dir(first_round)
        record = model_record(arrays)
        if not first_round:
            begun = time.perf_counter()
            self.strategy.prepare(record, self.grid)
            exchange = time.perf_counter() - begun
            before = self.strategy.report.exchange_seconds
            metrics = self.evaluate(evaluator, 0, arrays)
            report = self.strategy.report
            self.history.write(0, report, metrics, begun, exchange + report.exchange_seconds - before)
        while not self.ended:
            kept = self.strategy.state, self.strategy.states, self.choice
            try:
                record, arrays = self.round(self.made + 1, record, arrays, evaluator)
            except StrategyError:
                # the round may have failed after it had changed these, and a checkpoint is of one round
                self.strategy.state, self.strategy.states, self.choice = kept
                if self.made > first_round:
                    self.checkpoint(self.made, arrays)
                raise
        if evaluator.columns is not None:
            self.directory.save_columns(evaluator.columns)
        models = self.models(self.made, arrays)
        for view, model in models.items():
            self.directory.save_model(evaluator.name_arrays(model), view)
        if (best := self.choice.selected) is not None:
            if best.server_round == 0:
                text = "no round has a better %s than the initial model, which is selected: lower %s, or train longer"
                log(WARNING, text, config.evaluation.select_by, self.strategy.steps())
            models = best.models
            for view, model in models.items():
                self.directory.save_model(evaluator.name_arrays(model), add_suffix("best", view))
        if config.evaluation.tests or config.evaluation.counts:
            self.strategy.prepare(record, self.grid)  # a resumed run may have made no round
        found, tally = self.describe(evaluator, models, len(roster))
        found["samples"] = evaluator.sample_format and evaluator.sample_format.to_json()
        result = self.history.result(config, self.engine, roster, self.made, found, self.strategy.report)
        self.directory.finish(result, self.strategy.headline, pictures=config.run.pictures, tally=tally)
        return result

    def join(self) -> Roster:
        """Do the handshake; sites on this disk that read their own files may keep the key of their fingerprint here."""
        keeps = reads_own(self.config) and self.config.training.checkpoint_every
        if keeps and self.engine != DEPLOYMENT:
            self.directory.client_state.mkdir(exist_ok=True)
            self.strategy.local = {STATE_DIR: str(self.directory.client_state)}
        roster = self.strategy.join(self.grid)
        self.strategy.local = {}
        return roster

    @cached_property
    def data(self) -> dict[str, Any] | None:
        """Fingerprints of the run's data, or of the sites' reports; None for vertical runs and for minimax problems."""
        if not isinstance(self.config.algorithm.evaluation, RowEvaluation):
            return None
        if reads_own(self.config):
            return record_sites(self.strategy.roster.reports)
        return record_data(resources.federated_data(self.config.data, len(self.strategy.roster)))

    @property
    def ended(self) -> bool:
        """Whether the last round has been made: the one with that number, or that after which patience has run out."""
        out = self.choice.ends(self.config.evaluation.patience)
        return out or self.made >= self.config.training.num_server_rounds

    def evaluator(self, num_clients: int, *, test: bool = False) -> Evaluator:
        """Return the evaluator of the run's models.

        Args:
            test: whether on the test rows of a run that has validation rows.

        Raises:
            ConfigError, DataError: the server needs data that are not named, or that cannot be loaded.
        """
        config, strategy, evaluation = self.config, self.strategy, self.config.algorithm.evaluation
        if not isinstance(evaluation, RowEvaluation):
            return evaluation(config, num_clients, pooled=self.engine != DEPLOYMENT)
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

    def round(
        self, server_round: int, record: ArrayRecord, arrays: list[FloatArray], evaluator: Evaluator
    ) -> tuple[ArrayRecord, list[FloatArray]]:
        """Make one round: configure, exchange, aggregate, evaluate, record, checkpoint.

        Args:
            record: the model that the round starts from, as Flower's record; ``arrays`` are the same model.

        Returns:
            The new model, in both forms.

        Raises:
            StrategyError: the round failed, or its model or state is not finite.
            ValueError: metrics of the new model are not finite.
        """
        training = self.config.training
        begun = time.perf_counter()
        self.server_round = server_round
        messages = list(self.strategy.configure_train(server_round, record, ConfigRecord(), self.grid))
        sent = time.perf_counter()
        replies = self.strategy.deliver(self.grid, messages)
        exchange = time.perf_counter() - sent
        aggregated, _ = self.strategy.aggregate_train(server_round, replies)
        if aggregated is not None:
            record, arrays = aggregated, model_arrays(aggregated)
        last = server_round == training.num_server_rounds
        due = last or server_round % training.evaluate_every == 0
        metrics = self.evaluate(evaluator, server_round, arrays) if due else {}
        report = self.strategy.report
        self.history.write(server_round, report, metrics, begun, exchange + report.exchange_seconds)
        self.made = server_round
        if self.ended and not last and (best := self.choice.selected):
            text = "the run ends after round %d: %s has not been better than in round %d in %d evaluations"
            log(INFO, text, server_round, self.config.evaluation.select_by, best.server_round, best.waited)
        every = training.checkpoint_every
        if every and (self.ended or server_round % every == 0):
            self.checkpoint(server_round, arrays)
            self.offer_state_dir(server_round)
        return record, arrays

    def checkpoint(self, server_round: int, arrays: list[FloatArray]) -> None:
        """Save what a resumed run needs, if the run keeps checkpoints."""
        if self.config.training.checkpoint_every:
            states = self.strategy.states
            sites = states if states.kept.any() or states.since.any() else None
            kept, known = ({} if one is None else one.arrays() for one in (self.strategy.snapshot(), sites))
            best = dict(self.history.best)
            self.directory.save_checkpoint(Checkpoint(server_round, arrays, kept, known, best, self.choice, self.data))

    def models(self, server_round: int, arrays: list[FloatArray]) -> dict[str, list[FloatArray]]:
        """Return the model after a round under "", and the strategy's other views under their suffixes."""
        return {"": self.strategy.output(server_round, arrays), **self.strategy.views()}

    def evaluate(self, evaluator: Evaluator, server_round: int, arrays: list[FloatArray]) -> dict[str, float]:
        """Return the metrics of the `models` after a round, and take them into account for the choice.

        The figures of sites, where the round is to have them, are added to its report.

        Raises:
            ConfigError: ``select-by`` is none of the metrics.
            ValueError: some are not finite: the run has diverged.
        """
        models = self.models(server_round, arrays)
        metrics = evaluator.relate(self.strategy.measured) | measure(evaluator, models)
        self.choice = self.choice.take(self.config, server_round, metrics, models, evaluator.tally)
        if isinstance(evaluator, ScoreEvaluator) and evaluator.score_range and evaluator.sample_format:
            self.bounds = self.bounds or BoundWatch(evaluator.model, evaluator.sample_format.shape)
            if warning := self.bounds.take(*evaluator.score_range):
                self.history.warn(server_round, warning)
        if self.config.evaluation.has_figures(server_round, self.config.training) and evaluator.tally is not None:
            figures = describe_round(evaluator.tally, self.config, self.strategy.roster.reports)
            self.strategy.report.extras[ROUND_FIGURES] = figures
        return metrics

    def describe(
        self, evaluator: Evaluator, models: Mapping[str, list[FloatArray]], num_clients: int
    ) -> tuple[dict[str, Any], Tally | None]:
        """Measure what the run leaves, on test rows that nothing else has seen if it has chosen anything.

        Args:
            evaluator: of the run's rounds.
            models: the selected ones, or the last.

        Returns:
            What result.json says of them, and the scores that its figures are of, if there are any.
        """
        config, evaluation, best = self.config, self.config.evaluation, self.choice.selected
        found: dict[str, Any] = {}
        if best is not None:
            found["selected"] = {"round": best.server_round, "metric": evaluation.select_by, "value": best.value}
        self.server_round, self.strategy.report = self.made, RoundReport()
        if evaluation.tests:
            evaluator = self.evaluator(num_clients, test=True)
            found["test_metrics"] = measure(evaluator, models)
        elif evaluation.counts and evaluator.tally is None:  # the run was resumed after its last round
            measure(evaluator, models)
        if self.made < config.training.num_server_rounds:
            found["stopped"] = {"round": self.made, "patience": evaluation.patience}
        reports = self.strategy.roster.reports
        if not evaluation.counts or evaluator.tally is None:
            return found | left_out(SmallCells.of(config, reports).withheld), None
        figures = describe(evaluator.tally, config, reports, self.choice.threshold)
        return found | figures, evaluator.tally

    @property
    def place(self) -> str:
        """The round under way and the checkpoint to resume from, in words."""
        kept = [int(path.stem.removeprefix("round-")) for path in self.directory.checkpoints()]
        onward = f"resume=true goes on from the checkpoint of round {kept[-1]}" if kept else "there is no checkpoint"
        where = f"in round {self.server_round} of {self.config.training.num_server_rounds}"
        return f"{where if self.server_round else 'before round 1'}; {onward}"

    def resume(self, like: list[FloatArray]) -> list[FloatArray]:
        """Take the round, strategy state, choices and history from the newest checkpoint; return its model.

        Args:
            like: a model of the run, whose shapes and number types the checkpoint's must have.

        Raises:
            ConfigError: there is no whole checkpoint of this run, it has more rounds than the run is to have, or the
                data differ.
        """
        checkpoint = self.directory.newest_checkpoint()
        rounds = self.config.training.num_server_rounds
        if checkpoint.server_round > rounds:
            made = f"since the run in {self.directory.path} has already made as many rounds"
            allowed = f"{checkpoint.server_round} or more, {made}"
            raise ConfigError("num-server-rounds", got=rounds, allowed=allowed, hint="raise it")
        if self.data is not None:
            compare_data(checkpoint.data, self.data, self.config)
        state_type = self.strategy.state_type
        try:
            check_model(checkpoint.model, like)
            if state_type is None and checkpoint.state:
                raise PayloadError(f"{self.config.run.strategy} keeps no state, got {', '.join(checkpoint.state)}")
            if state_type is not None and checkpoint.state:
                self.strategy.restore(state_type.from_arrays(checkpoint.state, {"d": len(like[0])}))
            if checkpoint.sites:
                self.strategy.states = SiteStates.from_arrays(checkpoint.sites, {"n": len(self.strategy.roster)})
            if (best := checkpoint.choice.selected) is not None:
                check_model(best.models[""], self.strategy.output(checkpoint.server_round, checkpoint.model))
        except (ValueError, LookupError) as error:
            got = f"a newest checkpoint that does not fit this run ({error})"
            raise ConfigError("resume", got=got, allowed="one of this run", hint="begin a new run") from None
        self.made, self.choice = checkpoint.server_round, checkpoint.choice
        self.directory.cut_after(checkpoint.server_round)
        self.history.read(checkpoint.best)
        early = self.ended and self.made < rounds
        log(INFO, "resuming after round %d%s", self.made, ", where it ended: raise patience to go on" if early else "")
        return checkpoint.model

    def offer_state_dir(self, checkpoint_round: int) -> None:
        """Tell clients which checkpoint is on disk, and where to keep their memory if they share this disk.

        The parties of a vertical run keep their blocks in any case.

        Args:
            checkpoint_round: that of the newest checkpoint, 0 for none.
        """
        checkpoints = bool(self.config.training.checkpoint_every)
        if self.config.algorithm.client.memory is None or (self.strategy.shares_model and not checkpoints):
            return
        self.strategy.extra_config = {RUN_TOKEN: self.directory.token}
        if checkpoints:
            self.strategy.extra_config[CHECKPOINT_ROUND] = checkpoint_round
        if self.engine != DEPLOYMENT:
            self.directory.client_state.mkdir(exist_ok=True)
            self.strategy.local = {STATE_DIR: str(self.directory.client_state)}
