"""Compares finished, stopped, failed and unfinished runs by their directories."""

from __future__ import annotations

import csv
import io
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from apps.config import ConfigError, Scalar, flattened
from apps.files import write_atomic
from problems.metrics import binary_metrics
from simulations.output import shown, table

METRICS = (*binary_metrics([0, 1], [0, 1]), "accuracy", "loss")
COMPARED = ("auc", "pauc_fpr30", "pauc_fpr50", "average_precision", "loss")
FINISHED, STOPPED, FAILED, UNFINISHED = "finished", "stopped", "failed", "unfinished"
STOPPED_EARLY = "stopped early"  # how failure.json's reason begins where a sweep ended a run before its last round
_PLACES = ("output-dir", "run-name", "resume")
_MEGABYTE = 1e6


@dataclass(frozen=True)
class RunRecord:
    """What a run directory says. ``status`` is finished, stopped, failed or unfinished (interrupted, or under way)."""

    name: str
    path: Path
    status: str
    reason: str
    result: dict[str, Any]
    config: dict[str, Scalar]
    lines: list[dict[str, Any]]

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The run in numbers: bytes, seconds, and the metrics of the last evaluated round (None: there is none)."""
        result, lines = self.result, self.lines
        evaluated = [line for line in lines if "auc" in line]
        metrics = evaluated[-1] if evaluated else {}
        return {
            "strategy": result.get("strategy", self.config.get("strategy")),
            "dataset": self.config.get("dataset"),
            "seed": self.config.get("seed"),
            "clients": result.get("clients"),
            "rounds": lines[-1]["round"] if lines else 0,
            **{name: metrics.get(name) for name in METRICS},
            "bytes_up": sum(line.get("bytes_up", 0) for line in lines),
            "bytes_down": sum(line.get("bytes_down", 0) for line in lines),
            "seconds": result.get("wall_seconds", float(sum(line.get("seconds", 0.0) for line in lines))),
        }

    def curve(self, metric: str) -> dict[int, float]:
        """Round -> metric, of evaluated rounds."""
        return {line["round"]: line[metric] for line in self.lines if metric in line}

    def setting(self, key: str) -> Scalar | None:
        """A config key's value; ``strategy`` is what ran (``centralized`` for a reference)."""
        return self.facts[key] if key in ("strategy", "clients") else self.config.get(key)


def read_run(path: Path, name: str | None = None) -> RunRecord:
    """Read a run directory.

    Raises:
        ConfigError: there is no run in it, or one of its files cannot be read.
    """
    if not (path / "config.toml").is_file():
        raise ConfigError(f"{path} holds no run (there is no config.toml)")
    try:
        config = flattened(tomllib.loads((path / "config.toml").read_text("utf-8")))
        result = _object(path / "result.json")
        failure = _object(path / "failure.json")
        lines = _lines(path / "metrics.jsonl")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as a run ({error})") from None
    reason = str(failure.get("reason", ""))
    status = FINISHED if result else UNFINISHED
    if failure:
        status = STOPPED if reason.startswith(STOPPED_EARLY) else FAILED
    return RunRecord(name or path.resolve().name, path, status, reason, {} if failure else result, config, lines)


def _object(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} is not an object")
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines: the last may be half written."""
    text = path.read_text("utf-8") if path.exists() else ""
    lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    if not all(isinstance(line, dict) and "round" in line for line in lines):
        raise ValueError(f"{path.name} has a line without a round")
    return lines


@dataclass(frozen=True)
class Comparison:
    """Some runs side by side."""

    runs: list[RunRecord]

    @classmethod
    def of(cls, paths: Sequence[Path]) -> Comparison:
        """Read runs; they are named by their directories, or by their whole paths where those are the same.

        Raises:
            ConfigError: naming the first directory that holds no run.
        """
        names = [path.resolve().name for path in paths]
        unique = len(set(names)) == len(names)
        return cls([read_run(path, name if unique else str(path)) for path, name in zip(paths, names, strict=True)])

    @cached_property
    def differing(self) -> list[str]:
        """Config keys, and ``clients``, that have not one value in all runs."""
        keys = list(dict.fromkeys(key for run in self.runs for key in run.config if key not in _PLACES))
        found = [key for key in keys if len({repr(run.setting(key)) for run in self.runs}) > 1]
        clients = {run.setting("clients") for run in self.runs} - {None}  # an unfinished run does not say
        return [*found, "clients"] if len(clients) > 1 else found

    def label(self, run: RunRecord) -> str:
        """What tells a run, seeds apart, from the others."""
        keys = [key for key in self.differing if key != "seed"]
        parts = [f"{key}={shown(run.setting(key))}" for key in keys if run.setting(key) is not None]
        text = "  ".join(parts) or f"{run.setting('strategy')} on {run.config.get('dataset')}"
        return text if run.status == FINISHED else f"{text} ({run.status})"

    def rows(self) -> list[dict[str, Any]]:
        """One a run: its name, status, facts and differing keys under ``config``."""
        return [
            {
                "run": run.name,
                "path": str(run.path),
                "status": run.status,
                "reason": run.reason,
                **run.facts,
                "config": {key: run.setting(key) for key in self.differing},
            }
            for run in self.runs
        ]

    def text(self) -> str:
        """The runs as one table, what differs in their configs as another, and why runs have no result."""
        rows = self.rows()
        columns = ["run", "status", "strategy", "dataset", "seed", "rounds", *COMPARED, "MB up", "MB down", "seconds"]
        cells = [
            [
                *(shown(row[name]) for name in columns[:6]),
                *(shown(row[name], 4) for name in COMPARED),
                *(shown(row[name] / _MEGABYTE, 3) for name in ("bytes_up", "bytes_down")),
                shown(row["seconds"], 1),
            ]
            for row in rows
        ]
        blocks = [table(columns, cells)]
        keys = [key for key in self.differing if key not in ("strategy", "dataset", "seed")]
        if keys:
            settings = [[row["run"], *(shown(row["config"][key]) for key in keys)] for row in rows]
            blocks.append("what differs:\n" + table(["run", *keys], settings))
        reasons = [f"{row['run']} {row['status']}: {' '.join(row['reason'].split())}" for row in rows if row["reason"]]
        return "\n\n".join([*blocks, *(["\n".join(reasons)] if reasons else [])])

    def csv(self) -> str:
        """One row a run, bytes and seconds unrounded; config keys that have a column of their own are not repeated."""
        rows = self.rows()
        keys = [key for key in self.differing if key not in rows[0]]
        flat = [
            {**{k: v for k, v in row.items() if k != "config"}, **{k: row["config"][k] for k in keys}} for row in rows
        ]
        return csv_text(list(flat[0]), flat)

    def check_metric(self, metric: str) -> None:
        """Raises ConfigError: no run can have, or none has, such a metric."""
        check_metric(metric)
        if not any(run.curve(metric) for run in self.runs):
            raise ConfigError(f"--metric {metric}: none of these runs has evaluated it")

    def save(self, folder: Path, metric: str) -> None:
        """Write compare.csv and compare.png, replacing those of an earlier comparison."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out: cannot create {folder} ({error.strerror})") from None
        write_atomic(folder / "compare.csv", self.csv().encode())
        draw(self.curves(metric), folder / "compare.png", metric)

    def curves(self, metric: str) -> dict[str, list[dict[int, float]]]:
        """Label -> the curves of the runs that differ only in their seed."""
        groups: dict[str, list[dict[int, float]]] = {}
        for run in self.runs:
            if run.curve(metric):
                groups.setdefault(self.label(run), []).append(run.curve(metric))
        return groups


def check_metric(metric: str) -> None:
    """Raises ConfigError: no run has such a metric."""
    if metric not in METRICS:
        raise ConfigError(f"--metric: got {metric!r}, allowed: {', '.join(METRICS)}")


def csv_text(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Comma-separated values with a heading; None is an empty cell, a truth value is ``true`` or ``false``."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        cells = [row.get(name) for name in columns]
        writer.writerow([str(cell).lower() if isinstance(cell, bool) else cell for cell in cells])
    return buffer.getvalue()


def mean_and_spread(curves: Sequence[Mapping[int, float]]) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Rounds that all curves have, and there the mean and the sample standard deviation (0 for one curve)."""
    rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = np.array([[curve[r] for r in rounds] for curve in curves], dtype=float)  # (curves, rounds)
    spread = values.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(rounds))
    return rounds, values.mean(axis=0), spread


def draw(groups: Mapping[str, Sequence[Mapping[int, float]]], path: Path, metric: str) -> None:
    """Draw one line a group, its standard deviation shaded where it has several curves, as one PNG."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    colors = colormaps["tab10" if len(groups) <= 10 else "tab20"]
    for number, (label, curves) in enumerate(groups.items()):
        rounds, mean, spread = mean_and_spread(curves)
        color = colors(number % colors.N)
        name = f"{label}  ({len(curves)} runs)" if len(curves) > 1 else label
        marker = "." if len(rounds) < 40 else None
        axes.plot(rounds, mean, label=name.replace("$", r"\$"), color=color, marker=marker)
        if len(curves) > 1:
            axes.fill_between(rounds, mean - spread, mean + spread, color=color, alpha=0.2, linewidth=0)
    axes.set(xlabel="round", ylabel=f"{metric} on the test set")
    axes.grid(alpha=0.3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(groups) > 8:
        figure.legend(loc="outside right upper", frameon=False, fontsize=7)
    else:
        axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
