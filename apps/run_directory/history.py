"""The history of a run: a line for each round, the log, the best metrics and the bytes sent."""

import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from logging import INFO, WARNING
from typing import Any

from flwr.common import log

from apps.evaluation.after import summarise
from apps.evaluation.metric_names import better, format_metric, format_metrics
from apps.evaluation.personal import models_in_words
from apps.evaluation.site_figures import describe_in_words
from apps.run_config.algorithm import RunConfig
from apps.run_directory.artifacts import RunDirectory
from apps.run_directory.missing import WITH_MISSING, Watch, dropped_sites, in_words
from apps.run_directory.versions import versions
from problems.data import UNLABELLED
from strategies.rounds.handshake import Roster
from strategies.rounds.replies import RoundReport

# called with each line of metrics.jsonl after it is written; an exception from it ends the run
ROUND_LISTENER: ContextVar[Callable[[dict[str, Any]], None] | None] = ContextVar("ROUND_LISTENER", default=None)


class History:
    """The rounds of a run.

    Args:
        directory: The run directory, to which the lines are written.
        rounds: The number of rounds.
        view: The view whose metrics the log shows. "" is the model itself.
        steps: The names of the keys of step sizes, for warnings.

    Attributes:
        best: The best value of each metric.
        metrics: The metrics of the last evaluated round.
        bytes_up, bytes_down: The bytes of all rounds, including rounds before the run was resumed.
        warnings: The warnings about the model, with their rounds.
    """

    def __init__(self, directory: RunDirectory, rounds: int, view: str, steps: str) -> None:
        self.directory = directory
        self.rounds = str(rounds)
        self.view = view
        self.watch = Watch(view, steps)
        self.started = time.perf_counter()
        self.best: dict[str, float] = {}
        self.metrics: dict[str, float] = {}
        self.bytes_up = self.bytes_down = 0
        self.warnings: list[str] = []

    def warn(self, server_round: int, text: str) -> None:
        """Log a warning about the model, and add it to result.json.

        Args:
            server_round: The round of the model.
            text: The warning.
        """
        log(WARNING, "round %d: %s", server_round, text)
        self.warnings.append(f"round {server_round}: {text}")

    def read(self, best: Mapping[str, float]) -> None:
        """Restore the history of a resumed run from the lines of its directory.

        Args:
            best: The best metrics in its checkpoint.
        """
        self.best = dict(best)
        for line in self.directory.lines():
            self.bytes_up += line["bytes_up"]
            self.bytes_down += line["bytes_down"]
            self.metrics = {name: line[name] for name in self.best if name in line} or self.metrics

    def write(
        self, server_round: int, report: RoundReport, metrics: Mapping[str, float], begun: float, exchange: float
    ) -> None:
        """Add a round's line to metrics.jsonl and, if the round is notable, to the log.

        Args:
            server_round: The round.
            report: The strategy's report of the round's clients and bytes.
            metrics: The metrics by name. Empty if the round was not evaluated.
            begun: The reading of ``time.perf_counter`` at the round's beginning.
            exchange: The seconds during which the server waited for clients.
        """
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
        # an event takes longer to write than the line, so rounds with nothing to draw have no event
        notable = bool(metrics or report.dropped or report.state_lost)
        self.directory.append(line, event=notable)
        if notable:
            self.tell(server_round, report, metrics, seconds)
        for warning in self.watch.take(line, report.answered):
            log(WARNING, "round %d: %s", server_round, warning)
        listener = ROUND_LISTENER.get()
        if listener is not None:
            listener(line)

    def tell(self, server_round: int, report: RoundReport, metrics: Mapping[str, float], seconds: float) -> None:
        """Log a line for a round that was evaluated, dropped a client or lost a client's memory."""
        missing = ", ".join(self.watch.names.get(str(site), str(site)) for site in sorted(report.dropped))
        sites = f"sites {len(report.answered)}/{len(report.asked)}" + (f", without {missing}" if missing else "")
        width, measured = len(self.rounds), format_metrics(metrics, self.view)
        log(INFO, "round %*d/%s  %s  %s  %.2f s", width, server_round, self.rounds, measured, sites, seconds)

    def result(
        self,
        config: RunConfig,
        engine: str,
        roster: Roster,
        last_round: int,
        entries: Mapping[str, Any],
        report: RoundReport,
    ) -> dict[str, Any]:
        """Return the content of result.json.

        Args:
            config: The run config.
            engine: The name of the engine that carried the messages.
            roster: The sites that joined.
            last_round: The last round.
            entries: Further entries about the final models.
            report: The report of the exchanges after the last round.
        """
        warnings = [*self.watch.lasting, *self.warnings]
        after = {"dropped": {str(site): why for site, why in report.dropped.items()}}
        return {
            "strategy": config.run.strategy,
            "dataset": config.data.dataset,
            "seed": config.training.seed,
            "engine": engine,
            "rounds": last_round,
            "metrics": self.metrics,
            "best": self.best,
            **entries,
            "bytes_up": self.bytes_up + report.bytes_up,
            "bytes_down": self.bytes_down + report.bytes_down,
            "wall_seconds": time.perf_counter() - self.started,
            "clients": len(roster),
            "site_names": roster.site_names,
            "training_rows": _training_rows(config, roster),
            "dropped": dropped_sites([*self.directory.lines(), after]),
            **({"warnings": warnings} if warnings else {}),
            "versions": versions(),
            "config": config.resolve(),
        }

    def tell_result(self, result: Mapping[str, Any], config: RunConfig) -> None:
        """Log the figures of sites and, in the last line, the metrics and the sites that dropped out."""
        for text in (*describe_in_words(result, config), *models_in_words(result), *summarise(result)):
            log(INFO, "%s", text)
        missing = in_words(result["dropped"], result["rounds"], result["site_names"])
        level, outcome = (WARNING, WITH_MISSING) if missing else (INFO, "finished")
        metrics = format_metrics(result.get("test_metrics", result["metrics"]), self.view)
        if "test_metrics" in result:
            metrics = f"on the test rows {metrics}"
        if chosen := result.get("selected"):
            by = f"{chosen['metric']} {format_metric(chosen['metric'], chosen['value'])}"
            metrics = f"round {chosen['round']} of {result['rounds']} selected by {by}; {metrics}"
        remark, file = f"{missing}; " if missing else "", self.directory.path / "result.json"
        outcome = f"{outcome}: {metrics} " if metrics else outcome
        log(level, "%s in %.1f s; %ssee %s", outcome, result["wall_seconds"], remark, file)


def _training_rows(config: RunConfig, roster: Roster) -> list[dict[str, Any]] | None:
    """Return each site's numbers of training rows. None if the sites have columns, or rows without labels."""
    findings = roster.finding_counts
    if not config.algorithm.strategy.counts_samples or config.data.dataset in UNLABELLED:
        return None
    return [
        {"partition": partition, "rows": negatives + positives}
        | ({} if config.data.has_numbers or findings is not None else {"positives": positives})
        | ({} if findings is None else {"findings": findings[partition].tolist()})
        for partition, (negatives, positives) in enumerate(roster.class_counts.tolist())
    ]
