"""Reading of run directories: a `RunRecord` has a run's status, config, result and metrics."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from apps.config import SHOWING_KEYS, ConfigError, Scalar, flatten, parse_run_config
from apps.evaluation.metric_names import BOOKKEEPING, OF_SOME_RUNS, OF_TIMES, format_metric
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
    *(*OF_TIMES, "accuracy", "loss", "rmse", "mae", "r2", "deviance"),
    *("grad_phi_sq", *COMPOSITE_METRICS, SUBOPTIMALITY),
)
# metrics that are measured on training rows, or of problems without rows; a choice by these metrics uses no test rows
OF_TRAINING = (*COMPOSITE_METRICS, SUBOPTIMALITY, "grad_phi_sq")
UNTOLD = (*SHOWING_KEYS, "run-name", "resume")  # keys that do not distinguish runs
FINISHED, STOPPED, FAILED, UNFINISHED = "finished", "stopped", "failed", "unfinished"
STOPPED_EARLY = "stopped early"  # prefix of failure.json's reason if a sweep ended a run before its last round


class RunsInterruptedError(Exception):
    """The error if the user presses Ctrl-C during several runs. The message explains how to continue."""


@dataclass(frozen=True)
class RunRecord:
    """The content of a run directory.

    Attributes:
        name: The name in tables.
        path: The run directory.
        status: "finished", "stopped" (early, by a sweep), "failed", or "unfinished" (interrupted, or still running).
        reason: Why the run was stopped or failed, or "".
        result: The content of result.json. Empty: the run has not finished.
        config: The flat run config.
        lines: The lines of metrics.jsonl, one for each round.
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
        server_round: int | None = self.result.get("selected", {}).get("round")
        return server_round

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The metrics of the run's final model.

        Returns:
            The metrics of the last evaluated round or, with ``select-by`` or ``threshold-at``, the final metrics on the
            test rows. Empty: no round was evaluated.
        """
        last = next((metrics for line in reversed(self.lines) if (metrics := evaluation(line))), {})
        tested: dict[str, float] = self.result.get("test_metrics", last)
        return tested

    def curve(self, metric: str) -> dict[int, float]:
        """Return the metric of each evaluated round, by round.

        Returns:
            The metric by round, in order. Round 0 is the initial model. Empty: the run does not have the metric.
        """
        return {line["round"]: line[metric] for line in self.lines if metric in line}

    def last(self, metric: str) -> float | None:
        """Return the metric in the last round that measured it or, with ``select-by``, in the selected round.

        Returns:
            The value, which may be nan. None: the run does not have the metric.
        """
        curve, chosen = self.curve(metric), self.selected
        return next(reversed(curve.values()), None) if chosen is None else curve.get(chosen)

    def final(self, metric: str) -> float | None:
        """Return the metric of the run's final model: on the test rows if they were evaluated, otherwise see `last`."""
        return self.metrics.get(metric) if "test_metrics" in self.result else self.last(metric)

    @property
    def selection(self) -> str:
        """A text about the round or the threshold that was chosen on validation rows. Empty: no choice was made."""
        if not (chosen := self.result.get("selected")):
            return "its last model and a threshold chosen on validation rows" if "test_metrics" in self.result else ""
        value = format_metric(chosen["metric"], chosen["value"])
        text = f"round {chosen['round']} selected by {chosen['metric']} {value} on validation rows"
        return f"{text}, ended early after round {self.facts['rounds']}" if "stopped" in self.result else text

    def setting(self, key: str) -> Scalar | None:
        """Return the value of a run-config key, or the number of clients for the key ``clients``.

        Returns:
            The value. For a reference, ``strategy`` is the name of the reference. None: the key is not set, or the
            number of clients is unknown, since the run has no result.
        """
        return self.facts[key] if key in ("strategy", "clients") else self.config.get(key)

    @property
    def departures(self) -> dict[str, Scalar | None]:
        """The default of each run-config key whose value differs from the default of the run's strategy.

        Returns:
            The defaults by key. None: the key has no default.
        """
        default = defaults(self.config.get("strategy"))
        keys = [key for key in self.config if key not in (*UNTOLD, "strategy")]
        return {key: default.get(key) for key in keys if repr(self.config[key]) != repr(default.get(key))}

    def unlike(self, config: Mapping[str, Scalar], free: Sequence[str]) -> list[str]:
        """Return the keys in which this run's config differs from another run config.

        Args:
            config: The other flat run config. Absent keys have their defaults.
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
        The values by metric. Empty: the round was not evaluated.
    """
    return {name: value for name, value in line.items() if name not in BOOKKEEPING | OF_SOME_RUNS}


def read_run(path: Path, name: str | None = None) -> RunRecord:
    """Read a run directory.

    Args:
        path: The run directory.
        name: The run's name in tables. None: the name of the directory.

    Raises:
        ConfigError: The directory contains no run, or a file cannot be read.
    """
    if not (path / "config.toml").is_file():
        got, hint = "no run (there is no config.toml)", "use the path of a run directory, such as the --out of `run`"
        raise ConfigError(path, got=got, allowed="a run directory", hint=hint)
    try:
        config = flatten(tomllib.loads((path / "config.toml").read_text("utf-8")))
        result = read_object(path / "result.json")
        failure = read_object(path / "failure.json")
        lines = _lines(path / "metrics.jsonl")
    except (OSError, ValueError) as error:
        got = f"an unreadable run ({error})"
        hint = "copy the run directory again, see docs/run-directory.md"
        raise ConfigError(path, got=got, allowed="a run directory", hint=hint) from None
    reason = str(failure.get("reason", ""))
    status = FINISHED if result else UNFINISHED
    if failure:
        status = STOPPED if reason.startswith(STOPPED_EARLY) else FAILED
    return RunRecord(name or path.resolve().name, path, status, reason, {} if failure else result, config, lines)


def leave_reason(path: Path, reason: str) -> None:
    """Write the reason why a run has no result into its directory.

    Args:
        path: The run directory. If it does not exist, nothing is written.
        reason: The reason. If it begins with `STOPPED_EARLY`, the run counts as stopped, otherwise as failed.
    """
    if path.is_dir():
        write_atomic(path / "failure.json", (json.dumps({"reason": reason}, indent=2) + "\n").encode())


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; {} without the file.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not a JSON object.
    """
    content = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is not an object")
    return content


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return all complete lines of metrics.jsonl. A running process may have written only a part of the last line."""
    text = path.read_text("utf-8") if path.exists() else ""
    lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    if not all(isinstance(line, dict) and "round" in line for line in lines):
        raise ValueError(f"{path.name} has a line without a round")
    return lines


def check_metric(metric: str, config: Mapping[str, Scalar], key: str = "--metric") -> None:
    """Check that a metric exists.

    A user's own problem (``loss = "package.module:factory"``) has its own metrics, so any name is accepted.

    Args:
        metric: The metric's name.
        config: The flat run config. Only ``loss`` matters.
        key: The option or key that selects the metric, for the error message.

    Raises:
        ConfigError: The metric does not exist. The message lists all metrics.
    """
    if metric not in METRICS and ":" not in str(config.get("loss", "")):
        hint = did_you_mean(metric, METRICS, "see docs/run-directory.md")
        raise ConfigError(key, got=repr(metric), allowed=", ".join(METRICS), hint=hint)
