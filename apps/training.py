"""The round loop: what Flower's ``Strategy.start`` does, plus records, checkpoints, resume and server timing."""

import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.common import log
from flwr.serverapp import Grid

from apps.evaluation.metric_names import add_suffix, better, format_metrics
from apps.evaluation.models import RowEvaluation
from apps.evaluation.starting import starting_point
from apps.run_config.algorithm import Evaluator, RunConfig
from apps.run_config.settings import ConfigError
from apps.run_directory.artifacts import RunDirectory
from apps.run_directory.missing import WITH_MISSING, Watch, dropped_sites, in_words
from apps.run_directory.versions import versions
from apps.sites import resources
from apps.sites.rows import reads_own
from apps.sites.state_store import CHECKPOINT_ROUND, RUN_TOKEN, STATE_DIR
from payloads.flower_internals import DEPLOYMENT_GRID, PULL_INTERVAL, SIMULATION_GRID
from payloads.record import FloatArray, PayloadError
from payloads.wire import check_model, model_arrays, model_record
from strategies.base import PayloadStrategy
from strategies.method import MethodStrategy
from strategies.rounds.errors import DivergedError, StrategyError
from strategies.rounds.replies import SiteStates

DEPLOYMENT = "deployment"
FLOWER_SIMULATION = "flower-simulation"
ENGINES = {SIMULATION_GRID: FLOWER_SIMULATION, DEPLOYMENT_GRID: DEPLOYMENT}
# called with each line of metrics.jsonl once it is written; an exception from it ends the run
ROUND_LISTENER: ContextVar[Callable[[dict[str, Any]], None] | None] = ContextVar("ROUND_LISTENER", default=None)


def engine_of(grid: Grid) -> str:
    """Return the name of what carries a run's messages.

    Returns:
        "in-process", "flower-simulation" or "deployment"; of an unknown grid, the name of its class.
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
        self.watch = Watch(self.strategy.headline, self.strategy.steps())
        self.engine = engine_of(grid)
        self.started = time.perf_counter()
        self.server_round = 0
        # of the whole run so far
        self.best: dict[str, float] = {}
        self.metrics: dict[str, float] = {}
        self.bytes_up = self.bytes_down = 0

    def run(self) -> dict[str, Any]:
        """Train to the last round; returns what result.json holds."""
        config, training = self.config, self.config.training
        resources.hold_threads(training)
        if hasattr(self.grid, PULL_INTERVAL):
            setattr(self.grid, PULL_INTERVAL, 0.005)  # the default of 0.1 s is most of a short round
        roster = self.strategy.join(self.grid)
        log(INFO, "%s on %s: %d sites, engine %s", config.run.strategy, config.data.dataset, len(roster), self.engine)
        evaluator = self.evaluator(len(roster))
        log(INFO, "%s; results in %s", evaluator.summary, self.directory.path)
        if config.warning:
            log(WARNING, "%s", config.warning)
        self.strategy.layout = evaluator.layout
        if config.run.resume:
            first_round, arrays = self.resume(evaluator.start())
        else:
            first_round, arrays = 0, starting_point(config, evaluator)
        self.offer_state_dir(first_round)
        record = model_record(arrays)
        if not first_round:
            begun = time.perf_counter()
            self.strategy.prepare(record, self.grid)
            exchange = time.perf_counter() - begun
            before = self.strategy.report.exchange_seconds
            metrics = self.evaluate(evaluator, 0, arrays)
            self.write(0, metrics, begun, exchange + self.strategy.report.exchange_seconds - before)
        for server_round in range(first_round + 1, training.num_server_rounds + 1):
            try:
                record, arrays = self.round(server_round, record, arrays, evaluator)
            except DivergedError:
                raise  # the strategy already has this round's diverged state, which no checkpoint may hold
            except StrategyError:
                if server_round > first_round + 1:
                    self.checkpoint(server_round - 1, arrays)
                raise
        if evaluator.columns is not None:
            self.directory.save_columns(evaluator.columns)
        self.directory.save_model(evaluator.name_arrays(self.strategy.output(training.num_server_rounds, arrays)))
        for view, model in self.strategy.views().items():
            self.directory.save_model(evaluator.name_arrays(model), view)
        result = self.result(len(roster))
        self.directory.finish(result, self.strategy.headline, pictures=config.run.pictures)
        return result

    def evaluator(self, num_clients: int) -> Evaluator:
        """Return the evaluator of the run's models.

        Raises:
            ConfigError, DataError: the server needs data that are not named, or that cannot be loaded.
        """
        schema, evaluation = self.strategy.schema, self.config.algorithm.evaluation
        if not reads_own(self.config) or schema is None:
            return evaluation(self.config, num_clients, pooled=self.engine != DEPLOYMENT)
        strategy = self.strategy
        assert isinstance(evaluation, RowEvaluation)
        assert isinstance(strategy, MethodStrategy)
        return evaluation.of_sites(self.config, schema, lambda x: strategy.held_out_scores(self.server_round, x))

    def round(
        self, server_round: int, record: ArrayRecord, arrays: list[FloatArray], evaluator: Evaluator
    ) -> tuple[ArrayRecord, list[FloatArray]]:
        """Make one round: configure, exchange, aggregate, evaluate, record, checkpoint.

        Args:
            record: the model that the round starts from, as Flower's record; ``arrays`` are the same model.

        Returns:
            The new model, in both forms.

        Raises:
            StrategyError: the round failed; a `DivergedError` if its model or state is not finite.
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
        self.write(server_round, metrics, begun, exchange + self.strategy.report.exchange_seconds)
        every = training.checkpoint_every
        if every and (last or server_round % every == 0):
            self.checkpoint(server_round, arrays)
            self.offer_state_dir(server_round)
        return record, arrays

    def checkpoint(self, server_round: int, arrays: list[FloatArray]) -> None:
        """Save what a resumed run needs, if the run keeps checkpoints."""
        if self.config.training.checkpoint_every:
            states = self.strategy.states
            sites = states if states.kept.any() or states.since.any() else None
            self.directory.save_checkpoint(server_round, arrays, self.strategy.snapshot(), sites, self.best)

    def evaluate(self, evaluator: Evaluator, server_round: int, arrays: list[FloatArray]) -> dict[str, float]:
        """Return the metrics of the model after a round, and of the strategy's other views under their suffixes.

        Raises:
            ValueError: some are not finite: the run has diverged.
        """
        metrics = evaluator.relate(self.strategy.measured) | evaluator(self.strategy.output(server_round, arrays))
        for view, model in self.strategy.views().items():
            metrics |= {add_suffix(name, view): value for name, value in evaluator(model).items()}
        return metrics

    def write(self, server_round: int, metrics: Mapping[str, float], begun: float, exchange: float) -> None:
        """Add a round's line to metrics.jsonl and, if there is something to tell, to the log.

        Args:
            metrics: by name; empty if the round was not evaluated.
            begun: the reading of ``time.perf_counter`` at the round's beginning.
            exchange: seconds of it in which the server waited for clients.
        """
        report = self.strategy.report
        seconds = time.perf_counter() - begun
        self.bytes_up += report.bytes_up
        self.bytes_down += report.bytes_down
        if metrics:
            self.metrics = dict(metrics)
            for name, value in metrics.items():
                self.best[name] = better(name)(self.best.get(name, value), value)
        line: dict[str, Any] = {
            "round": server_round,
            **metrics,
            "bytes_up": report.bytes_up,
            "bytes_down": report.bytes_down,
            "clients_asked": len(report.asked),
            "clients_answered": len(report.answered),
            "dropped": {str(site): reason for site, reason in report.dropped.items()},
            "state_lost": report.state_lost,
            "seconds": seconds,
            "server_seconds": seconds - exchange,
            **report.extras,
        }
        # writing an event takes longer than the line, and a round without metrics has little to draw
        notable = bool(metrics or report.dropped or report.state_lost)
        self.directory.append(line, event=notable)
        if notable:
            self.tell(server_round, metrics, seconds)
        for warning in self.watch.take(line, report.answered):
            log(WARNING, "round %d: %s", server_round, warning)
        listener = ROUND_LISTENER.get()
        if listener is not None:
            listener(line)

    def tell(self, server_round: int, metrics: Mapping[str, float], seconds: float) -> None:
        """Log a line for a round that was evaluated, dropped a client or lost a client's memory."""
        report, rounds = self.strategy.report, str(self.config.training.num_server_rounds)
        missing = ", ".join(map(str, sorted(report.dropped)))
        sites = f"sites {len(report.answered)}/{len(report.asked)}" + (f", without {missing}" if missing else "")
        measured = format_metrics(metrics, self.strategy.headline)
        log(INFO, "round %*d/%s  %s  %s  %.2f s", len(rounds), server_round, rounds, measured, sites, seconds)

    @property
    def place(self) -> str:
        """The round under way and the checkpoint to resume from, in words."""
        kept = [int(path.stem.removeprefix("round-")) for path in self.directory.checkpoints()]
        onward = f"resume=true goes on from the checkpoint of round {kept[-1]}" if kept else "there is no checkpoint"
        where = f"in round {self.server_round} of {self.config.training.num_server_rounds}"
        return f"{where if self.server_round else 'before round 1'}; {onward}"

    def resume(self, like: list[FloatArray]) -> tuple[int, list[FloatArray]]:
        """Take strategy state and history from the newest checkpoint; return its round and its model.

        Args:
            like: a model of the run, whose shapes and number types the checkpoint's must have.

        Raises:
            ConfigError: there is no whole checkpoint of this run, or it has more rounds than the run is to have.
        """
        checkpoint = self.directory.newest_checkpoint()
        rounds = self.config.training.num_server_rounds
        if checkpoint.server_round > rounds:
            made = f"since the run in {self.directory.path} has already made as many rounds"
            allowed = f"{checkpoint.server_round} or more, {made}"
            raise ConfigError("num-server-rounds", got=rounds, allowed=allowed, hint="raise it")
        state_type = self.strategy.state_type
        try:
            check_model(checkpoint.model, like)
            if state_type is None and checkpoint.state:
                raise PayloadError(f"{self.config.run.strategy} keeps no state, got {', '.join(checkpoint.state)}")
            if state_type is not None and checkpoint.state:
                self.strategy.restore(state_type.from_arrays(checkpoint.state, {"d": len(like[0])}))
            if checkpoint.sites:
                self.strategy.states = SiteStates.from_arrays(checkpoint.sites, {"n": len(self.strategy.roster)})
        except (ValueError, LookupError) as error:
            got = f"a newest checkpoint that does not fit this run ({error})"
            raise ConfigError("resume", got=got, allowed="one of this run", hint="begin a new run") from None
        self.best = checkpoint.best
        self.directory.cut_after(checkpoint.server_round)
        for line in self.directory.lines():
            self.bytes_up += line["bytes_up"]
            self.bytes_down += line["bytes_down"]
            self.metrics = {name: line[name] for name in self.best if name in line} or self.metrics
        log(INFO, "resuming after round %d", checkpoint.server_round)
        return checkpoint.server_round, checkpoint.model

    def offer_state_dir(self, checkpoint_round: int) -> None:
        """Tell clients which checkpoint is on disk, and where to keep their memory if they share this disk.

        Args:
            checkpoint_round: that of the newest checkpoint, 0 for none.
        """
        if not self.config.training.checkpoint_every or self.config.algorithm.client.memory is None:
            return
        self.strategy.extra_config = {CHECKPOINT_ROUND: checkpoint_round, RUN_TOKEN: self.directory.token}
        if self.engine != DEPLOYMENT:
            self.directory.client_state.mkdir(exist_ok=True)
            self.strategy.local = {STATE_DIR: str(self.directory.client_state)}

    def tell_result(self, result: Mapping[str, Any]) -> None:
        """Log the last line: the metrics, and which sites were missing."""
        missing = in_words(result["dropped"], result["rounds"])
        level, outcome = (WARNING, WITH_MISSING) if missing else (INFO, "finished")
        metrics, seconds = format_metrics(result["metrics"], self.strategy.headline), result["wall_seconds"]
        remark, place = f"{missing}; " if missing else "", self.directory.path / "result.json"
        log(level, "%s: %s  in %.1f s; %ssee %s", outcome, metrics, seconds, remark, place)

    def result(self, num_clients: int) -> dict[str, Any]:
        """What result.json holds."""
        return {
            "strategy": self.config.run.strategy,
            "dataset": self.config.data.dataset,
            "seed": self.config.training.seed,
            "engine": self.engine,
            "rounds": self.config.training.num_server_rounds,
            "metrics": self.metrics,
            "best": self.best,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "wall_seconds": time.perf_counter() - self.started,
            "clients": num_clients,
            "dropped": dropped_sites(self.directory.lines()),
            "versions": versions(),
            "config": self.config.resolve(),
        }
