"""Records of runs, read from run directories."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from apps.config import SHOWING_KEYS, ConfigError, Scalar, flatten, parse_run_config
from apps.evaluation.metric_names import format_metric
from apps.evaluation.site_figures import ROUND_FIGURES
from apps.evaluation.vertical import SUBOPTIMALITY
from apps.run_directory.missing import dropped_sites
from problems.errors import did_you_mean
from problems.files import write_atomic
from problems.metrics import binary_metrics

# metrics of a composite objective, see `apps.evaluation.composite`
COMPOSITE_METRICS = ("nonzeros", "objective", "stationarity", "optimality", "support_f1")
# metrics of all problems
METRICS = (
    *binary_metrics([0, 1], [0, 1]),
    *("accuracy", "loss", "rmse", "grad_phi_sq", *COMPOSITE_METRICS, SUBOPTIMALITY),
)
# metrics of the training rows, or of a problem without rows: choosing by them uses no test row
OF_TRAINING = (*COMPOSITE_METRICS, SUBOPTIMALITY, "grad_phi_sq")
TRAINING_SECONDS = "training_seconds"
# the entries of every line of metrics.jsonl, evaluated or not
BOOKKEEPING = frozenset(
    [
        *("round", "bytes_up", "bytes_down", "clients_asked", "clients_answered"),
        *("dropped", "state_lost", "seconds", "server_seconds"),
    ]
)
# entries of some runs: a vertical run's seconds without joining and evaluation, spent budgets, figures of sites
OF_SOME_RUNS = frozenset([TRAINING_SECONDS, "epsilon", "pool_epsilon", ROUND_FIGURES])
UNTOLD = (*SHOWING_KEYS, "run-name", "resume")  # keys that do not distinguish runs
FINISHED, STOPPED, FAILED, UNFINISHED = "finished", "stopped", "failed", "unfinished"
STOPPED_EARLY = "stopped early"  # prefix of failure.json's reason if a sweep ended a run before its last round


class RunsInterruptedError(Exception):
    """Ctrl-C during several runs. The message explains how to continue."""


@dataclass(frozen=True)
class RunRecord:
    """The content of a run directory.

    ``status`` is finished, stopped, failed or unfinished (interrupted, or under way).
    """

    name: str
    path: Path
    status: str
    reason: str
    result: dict[str, Any]
    config: dict[str, Scalar]
    lines: list[dict[str, Any]]

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The run's facts and numbers, except its metrics."""
        result, lines = self.result, self.lines
        return {
            "strategy": result.get("strategy", self.config.get("strategy")),
            "dataset": self.config.get("dataset"),
            "seed": self.config.get("seed"),
            "clients": result.get("clients"),
            "rounds": lines[-1]["round"] if lines else 0,
            "rounds_with_missing_sites": sum(bool(line.get("dropped")) for line in lines),
            "bytes_up": sum(line.get("bytes_up", 0) for line in lines),
            "bytes_down": sum(line.get("bytes_down", 0) for line in lines),
            "seconds": result.get("wall_seconds", float(sum(line.get("seconds", 0.0) for line in lines))),
        }

    @cached_property
    def dropped(self) -> dict[str, dict[str, Any]]:
        """The missing sites, see `dropped_sites`."""
        return dropped_sites(self.lines)

    @property
    def site_names(self) -> dict[str, str]:
        """The names of sites, by partition id as text. Empty before the run's end."""
        found: dict[str, str] = self.result.get("site_names", {})
        return found

    @property
    def selected(self) -> int | None:
        """The selected round. None without ``select-by``, or before the run's end."""
        found: int | None = self.result.get("selected", {}).get("round")
        return found

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The metrics of the run's final model.

        Returns:
            The metrics of the last evaluated round or, with ``select-by`` or ``threshold-at``, on the test rows. Empty
                if no round was evaluated.
        """
        last = next((found for line in reversed(self.lines) if (found := evaluation(line))), {})
        tested: dict[str, float] = self.result.get("test_metrics", last)
        return tested

    def curve(self, metric: str) -> dict[int, float]:
        """Return the metric of each evaluated round, by round.

        Returns:
            The rounds in order; 0 is the initial model. Empty if the run lacks the metric.
        """
        return {line["round"]: line[metric] for line in self.lines if metric in line}

    def last(self, metric: str) -> float | None:
        """Return the metric in the last round with it or, with ``select-by``, in the selected round.

        Returns:
            The value, which may be nan; None if the run lacks the metric.
        """
        curve, chosen = self.curve(metric), self.selected
        return next(reversed(curve.values()), None) if chosen is None else curve.get(chosen)

    def final(self, metric: str) -> float | None:
        """Return the metric of the run's final model: on the test rows if it was measured there, else as `last`."""
        return self.metrics.get(metric) if "test_metrics" in self.result else self.last(metric)

    @property
    def selection(self) -> str:
        """A text about the round or threshold chosen on validation rows; empty without a choice."""
        if not (chosen := self.result.get("selected")):
            return "its last model and a threshold chosen on validation rows" if "test_metrics" in self.result else ""
        value = format_metric(chosen["metric"], chosen["value"])
        text = f"round {chosen['round']} selected by {chosen['metric']} {value} on validation rows"
        return f"{text}, ended early after round {self.facts['rounds']}" if "stopped" in self.result else text

    def setting(self, key: str) -> Scalar | None:
        """Return the value of a run-config key or ``clients``. For a reference ``strategy`` is ``centralized``.

        Returns:
            The value; None if the key is not set, or if it is ``clients`` and the run has no result.
        """
        return self.facts[key] if key in ("strategy", "clients") else self.config.get(key)

    @property
    def departures(self) -> dict[str, Scalar | None]:
        """The config keys in which the run departs from the defaults of its strategy.

        Returns:
            The defaults by key; None for keys without a default.
        """
        default = defaults(self.config.get("strategy"))
        keys = [key for key in self.config if key not in (*UNTOLD, "strategy")]
        return {key: default.get(key) for key in keys if repr(self.config[key]) != repr(default.get(key))}

    def unlike(self, config: Mapping[str, Scalar], free: Sequence[str]) -> list[str]:
        """Return the keys whose values would differ in a run of this flat run config.

        Args:
            config: The flat run config. Absent keys have their defaults.
            free: The keys that may differ.

        Raises:
            ConfigError: The config is not valid.
        """
        wanted = flatten(parse_run_config(config).resolve())
        keys = [key for key in dict.fromkeys([*wanted, *self.config]) if key not in free]
        return [key for key in keys if repr(wanted.get(key)) != repr(self.config.get(key))]


@cache
def defaults(strategy: Scalar | None) -> dict[str, Scalar]:
    """Return the resolved run config of a strategy without other keys; empty if the strategy no longer exists."""
    try:
        return flatten(parse_run_config({"strategy": strategy}).resolve())  # type: ignore[dict-item]
    except ConfigError:
        return {}


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values differ between configs.

    Args:
        configs: The flat configs. A missing key has the value None.

    Returns:
        The keys in the order of their first occurrence.
    """
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if len({repr(config.get(key)) for config in configs}) > 1]


def evaluation(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a line of metrics.jsonl.

    Returns:
        The values by metric; empty if the round was not evaluated.
    """
    return {name: value for name, value in line.items() if name not in BOOKKEEPING | OF_SOME_RUNS}


def read_run(path: Path, name: str | None = None) -> RunRecord:
    """Read a run directory.

    Raises:
        ConfigError: The directory contains no run, or a file cannot be read.
    """
    if not (path / "config.toml").is_file():
        got = "no run (there is no config.toml)"
        raise ConfigError(path, got=got, allowed="a run directory", hint="use a run directory, such as a run's --out")
    try:
        config = flatten(tomllib.loads((path / "config.toml").read_text("utf-8")))
        result = _object(path / "result.json")
        failure = _object(path / "failure.json")
        lines = _lines(path / "metrics.jsonl")
    except (OSError, ValueError) as error:
        got = f"an unreadable run ({error})"
        raise ConfigError(path, got=got, allowed="a run directory", hint="see docs/run-directory.md") from None
    reason = str(failure.get("reason", ""))
    status = FINISHED if result else UNFINISHED
    if failure:
        status = STOPPED if reason.startswith(STOPPED_EARLY) else FAILED
    return RunRecord(name or path.resolve().name, path, status, reason, {} if failure else result, config, lines)


def leave_reason(path: Path, reason: str) -> None:
    """Write the reason why a run has no result into its directory.

    Args:
        path: The run directory. If it does not exist, nothing is written.
        reason: The reason. It begins with `STOPPED_EARLY` for a stopped run; any other reason marks a failed run.
    """
    if path.is_dir():
        write_atomic(path / "failure.json", (json.dumps({"reason": reason}, indent=2) + "\n").encode())


def _object(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} is not an object")
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return all complete lines. The last line may be incomplete."""
    text = path.read_text("utf-8") if path.exists() else ""
    lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    if not all(isinstance(line, dict) and "round" in line for line in lines):
        raise ValueError(f"{path.name} has a line without a round")
    return lines


def check_metric(metric: str, config: Mapping[str, Scalar], asked: str = "--metric") -> None:
    """Check that a metric exists.

    A user's own problem (``loss = "package.module:factory"``) has its own metrics, so any name may be correct.

    Args:
        config: The flat run config. Only ``loss`` matters.
        asked: The option or key that names the metric.

    Raises:
        ConfigError: The metric does not exist. The message lists all metrics.
    """
    if metric not in METRICS and ":" not in str(config.get("loss", "")):
        hint = did_you_mean(metric, METRICS, "see docs/run-directory.md")
        raise ConfigError(asked, got=repr(metric), allowed=", ".join(METRICS), hint=hint)
