"""The loop over a run's rounds at the server, in place of Flower's ``Strategy.start``.

In addition to training, it writes the run's records and checkpoints, resumes a run, and measures the server's time.
"""

import os
import time
from functools import cached_property
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.common import log
from flwr.serverapp import Grid

from apps.evaluation.labels import check_findings, describe_columns, describe_labels
from apps.evaluation.measurement import Measurement
from apps.evaluation.metric_names import add_suffix
from apps.evaluation.models import RowEvaluation
from apps.evaluation.selection import check_test_rows
from apps.evaluation.sets import column_names
from apps.evaluation.small_cells import warn_of_withheld
from apps.evaluation.starting import starting_point
from apps.run_config.algorithm import Evaluator, RunConfig
from apps.run_config.settings import LOCAL_NORMS, ConfigError
from apps.run_directory.artifacts import RunDirectory
from apps.run_directory.checkpoints import restore, snapshot
from apps.run_directory.coefficients import COEFFICIENTS, save_coefficients
from apps.run_directory.history import History
from apps.run_directory.same_data import compare_data, record
from apps.run_directory.survival import save_survival
from apps.sites import resources
from apps.sites.rows import reads_own
from apps.sites.state_store import CHECKPOINT_ROUND, STATE_DIR
from payloads.broadcast import Broadcast
from payloads.flower_internals import DEPLOYMENT_GRID, PULL_INTERVAL, SIMULATION_GRID
from payloads.record import FloatArray
from payloads.wire import RUN_TOKEN, model_arrays, model_record
from strategies.base import PayloadStrategy
from strategies.rounds.errors import StrategyError
from strategies.rounds.handshake import Roster

DEPLOYMENT = "deployment"
FLOWER_SIMULATION = "flower-simulation"
ENGINES = {SIMULATION_GRID: FLOWER_SIMULATION, DEPLOYMENT_GRID: DEPLOYMENT}


def engine_of(grid: Grid) -> str:
    """Return the name of the engine, which carries a run's messages between the server and the clients.

    Returns:
        "in-process", "ray", "flower-simulation" or "deployment". For an unknown type of grid, the type's name.
    """
    return str(getattr(grid, "engine", ENGINES.get(type(grid).__name__, type(grid).__name__)))


class Training:
    """One run from its first handshake to its result.

    Attributes:
        last_round: The last completed round. 0 before round 1.
    """

    def __init__(self, config: RunConfig, grid: Grid, directory: RunDirectory) -> None:
        self.config = config
        self.grid = grid
        self.directory = directory
        self.strategy: PayloadStrategy = config.algorithm.strategy(config.training, config.family)
        self.strategy.privacy = config.privacy
        rounds = config.training.num_server_rounds
        self.history = History(directory, rounds, self.strategy.headline, self.strategy.steps())
        self.engine = engine_of(grid)
        self.measurement = Measurement(
            config, self.strategy, deployed=self.engine == DEPLOYMENT, warn=self.history.warn
        )
        self.last_round = 0

    def run(self) -> dict[str, Any]:
        """Train to the last round, and return the content of result.json."""
        config = self.config
        resources.hold_threads(config.training)
        if hasattr(self.grid, PULL_INTERVAL):
            setattr(self.grid, PULL_INTERVAL, 0.005)  # the default of 0.1 s is most of a short round
        if config.training.reply_seconds and self.engine == DEPLOYMENT:
            got, allowed = f"{config.training.reply_seconds!r} in a deployment", "'', since real clients take real time"
            raise ConfigError("reply-seconds", got=got, allowed=allowed, hint="remove reply-seconds")
        roster = self.join()
        self.history.watch.names = roster.site_names
        log(INFO, "%s on %s: %d sites, engine %s", config.run.strategy, config.data.dataset, len(roster), self.engine)
        if config.evaluation.tests and not (config.data.has_numbers or config.data.has_times or config.data.findings):
            check_test_rows(roster.reports)
        if config.data.findings:
            check_findings(config.data, roster.reports)
        warn_of_withheld(config, roster.reports)
        evaluator = self.measurement.evaluator(len(roster))
        if config.evaluation.importance:
            column_names(evaluator)  # refuses samples without columns
        log(INFO, "%s; results in %s", evaluator.summary, self.directory.path)
        lines = describe_labels(config.data, evaluator.sample_format, roster.class_counts, roster.finding_counts)
        for line in (*evaluator.notes, *lines, *describe_columns(evaluator.columns)):
            log(INFO, "%s", line)
        if config.note:
            log(INFO, "%s", config.note)
        if config.warning:
            log(WARNING, "%s", config.warning)
        self.strategy.layout, self.strategy.columns = evaluator.layout, evaluator.columns
        self.strategy.num_frozen = evaluator.num_frozen
        if config.run.resume:
            arrays = self.resume(evaluator.start())
        else:
            arrays = starting_point(config, evaluator, self.directory.save_weights)
        first_round = self.last_round
        self.offer_state_dir(first_round)
        record = model_record(arrays)
        if not first_round:
            begun = time.perf_counter()
            self.strategy.prepare(record, self.grid)
            exchange = time.perf_counter() - begun
            earlier = self.strategy.report.exchange_seconds
            metrics = self.measurement.measure(evaluator, 0, arrays)
            report = self.strategy.report
            self.history.write(0, report, metrics, begun, exchange + report.exchange_seconds - earlier)
        while not self.ended:
            before = self.strategy.state, self.strategy.states, self.measurement.choice
            try:
                record, arrays = self.round(self.last_round + 1, record, arrays, evaluator)
            except StrategyError:
                # the failed round may have changed these three, but a checkpoint is the state after a whole round
                self.strategy.state, self.strategy.states, self.measurement.choice = before
                if self.last_round > first_round:
                    self.checkpoint(self.last_round, arrays)
                raise
        if evaluator.columns is not None:
            self.directory.save_columns(evaluator.columns)
        models = self.measurement.models(self.last_round, arrays)
        for view, model in models.items():
            entries = evaluator.name_arrays(model)
            self.directory.save_model({name: entries[name] for name in entries if name not in evaluator.at_sites}, view)
        if (best := self.measurement.choice.selected) is not None:
            if best.server_round == 0:
                text = "the initial model is selected, since no round has a better %s: lower %s, or train longer"
                log(WARNING, text, config.evaluation.select_by, self.strategy.steps())
            models = best.models
            for view, model in models.items():
                self.directory.save_model(evaluator.name_arrays(model), add_suffix("best", view))
        if config.evaluation.tests or config.evaluation.counts or config.data.has_times:
            self.strategy.prepare(record, self.grid)  # needed if a run was resumed after its last round
        entries, tally = self.measurement.describe(evaluator, models, self.last_round)
        entries["samples"] = evaluator.sample_format and evaluator.sample_format.to_json()
        entries |= self.strategy.results(self.last_round)
        if COEFFICIENTS in entries:
            for line in save_coefficients(self.directory.path, entries[COEFFICIENTS]):
                log(INFO, "%s", line)
        if (survival := self.measurement.describe_survival(models[""], entries)) is not None:
            save_survival(self.directory.path, survival)
        result = self.history.result(config, self.engine, roster, self.last_round, entries, self.strategy.report)
        self.directory.finish(result, self.strategy.headline, pictures=config.run.pictures, tally=tally)
        return result

    def join(self) -> Roster:
        """Do the handshake with the sites.

        Sites that read their own files and share this disk may store, in the run directory, the secret key with which
        they compute fingerprints of their files.
        """
        keeps = reads_own(self.config) and self.config.training.checkpoint_every
        if keeps and self.engine != DEPLOYMENT:
            self.directory.client_state.mkdir(exist_ok=True)
            self.strategy.local = {STATE_DIR: str(self.directory.client_state)}
        roster = self.strategy.join(self.grid)
        self.strategy.local = {}
        return roster

    @cached_property
    def data(self) -> dict[str, Any] | None:
        """Fingerprints of the run's data, or of the sites' reports. None for vertical runs."""
        by_rows = isinstance(self.config.algorithm.evaluation, RowEvaluation)
        return record(self.config, self.strategy.roster.reports) if by_rows else None

    @property
    def ended(self) -> bool:
        """Whether the run has completed its last round, or ends early, by ``patience`` or by the strategy."""
        early = self.measurement.choice.ends(self.config.evaluation.patience) or self.strategy.ended() != ""
        return early or self.last_round >= self.config.training.num_server_rounds

    def round(
        self, server_round: int, record: ArrayRecord, arrays: list[FloatArray], evaluator: Evaluator
    ) -> tuple[ArrayRecord, list[FloatArray]]:
        """Run one round: configure, exchange, aggregate, evaluate, write the record and the checkpoint.

        Args:
            server_round: The round's number.
            record: The model at the start of the round, as Flower's record.
            arrays: The same model, as flat arrays.
            evaluator: The evaluator of the run's models.

        Returns:
            The new model as Flower's record, and as flat arrays.

        Raises:
            StrategyError: The round failed, or its model or state is not finite.
            ValueError: Metrics of the new model are not finite.
        """
        training = self.config.training
        begun = time.perf_counter()
        self.measurement.server_round = server_round
        messages = self.strategy.configure_train(server_round, record, ConfigRecord(), self.grid)
        messages = messages if isinstance(messages, Broadcast) else list(messages)
        sent = time.perf_counter()
        replies = self.strategy.deliver(self.grid, messages)
        exchange = time.perf_counter() - sent
        aggregated, _ = self.strategy.aggregate_train(server_round, replies)
        if aggregated is not None:
            record, arrays = aggregated, model_arrays(aggregated)
        last = server_round == training.num_server_rounds
        due = last or bool(self.strategy.ended()) or server_round % training.evaluate_every == 0
        metrics = self.measurement.measure(evaluator, server_round, arrays) if due else {}
        report = self.strategy.report
        self.history.write(server_round, report, metrics, begun, exchange + report.exchange_seconds)
        self.last_round = server_round
        if not last and (reason := self.strategy.ended()):
            log(INFO, "the run ends after round %d: %s", server_round, reason)
        elif self.ended and not last and (best := self.measurement.choice.selected):
            text = "the run ends after round %d: %s has not been better than in round %d in %d evaluations"
            log(INFO, text, server_round, self.config.evaluation.select_by, best.server_round, best.waited)
        every = training.checkpoint_every
        if every and (self.ended or server_round % every == 0):
            self.checkpoint(server_round, arrays)
            self.offer_state_dir(server_round)
        return record, arrays

    def checkpoint(self, server_round: int, arrays: list[FloatArray]) -> None:
        """Save the run's state for a resumed run, if the run keeps checkpoints."""
        if self.config.training.checkpoint_every:
            if self.strategy.local:
                os.sync()  # the clients' memories, which clients on this disk do not flush
            best = dict(self.history.best)
            self.directory.save_checkpoint(
                snapshot(self.strategy, server_round, arrays, best=best, choice=self.measurement.choice, data=self.data)
            )

    @property
    def progress(self) -> str:
        """The current round and the checkpoint to resume from, in words."""
        saved = [int(path.stem.removeprefix("round-")) for path in self.directory.checkpoints()]
        onward = f"resume=true goes on from the checkpoint of round {saved[-1]}" if saved else "there is no checkpoint"
        current = f"in round {self.measurement.server_round} of {self.config.training.num_server_rounds}"
        return f"{current if self.measurement.server_round else 'before round 1'}; {onward}"

    def resume(self, like: list[FloatArray]) -> list[FloatArray]:
        """Restore the round, the strategy's state, the choices and the history, and return the checkpoint's model.

        Args:
            like: A model of the run. The checkpoint's model must have the same shapes and number types.

        Raises:
            ConfigError: The run has no complete checkpoint, its newest checkpoint is of a later round than
                ``num-server-rounds``, or the data differ.
        """
        checkpoint = self.directory.newest_checkpoint()
        rounds = self.config.training.num_server_rounds
        if checkpoint.server_round > rounds:
            completed = checkpoint.server_round
            raise ConfigError(
                "num-server-rounds",
                got=rounds,
                allowed=f"{completed} or more, since the run in {self.directory.path} has completed round {completed}",
                hint=f"set num-server-rounds to {completed} or more",
            )
        if self.data is not None:
            compare_data(checkpoint.data, self.data, self.config)
        try:
            restore(self.strategy, checkpoint, like)
        except (ValueError, LookupError) as error:
            got = f"a checkpoint that does not fit this run ({error})"
            hint = "remove resume to begin a new run"
            raise ConfigError("resume", got=got, allowed="a checkpoint of this run", hint=hint) from None
        self.last_round, self.measurement.choice = checkpoint.server_round, checkpoint.choice
        self.directory.cut_after(checkpoint.server_round)
        self.history.read(checkpoint.best)
        early = self.ended and self.last_round < rounds
        log(
            INFO,
            "resuming after round %d%s",
            self.last_round,
            f", the run's early end: {self.strategy.ended() or 'raise patience to go on'}" if early else "",
        )
        return checkpoint.model

    def offer_state_dir(self, checkpoint_round: int) -> None:
        """Let the next messages name the newest checkpoint and, if clients share this disk, a folder for their memory.

        The folder is not offered for runs without checkpoints, except to parties of a vertical run, which always store
        their parts of the model.

        Args:
            checkpoint_round: The round of the newest checkpoint. 0: no checkpoint.
        """
        checkpoints = bool(self.config.training.checkpoint_every)
        memory = self.config.algorithm.client.memory is not None or self.config.run.batch_norm == LOCAL_NORMS
        memory = memory or bool(self.config.evaluation.fine_tune_steps)
        if not memory or (self.strategy.shares_model and not checkpoints):
            return
        self.strategy.extra_config = {RUN_TOKEN: self.directory.token}
        if checkpoints:
            self.strategy.extra_config[CHECKPOINT_ROUND] = checkpoint_round
        if self.engine != DEPLOYMENT:
            self.directory.client_state.mkdir(exist_ok=True)
            self.strategy.local = {STATE_DIR: str(self.directory.client_state)}
