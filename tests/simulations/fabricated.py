"""A small experiment's file, fabricated runs, and a stand-in for the worker processes."""

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tomli_w

from apps.config import Scalar, parse_run_config
from apps.evaluation.metric_names import OF_TIMES
from simulations.arguments import add_directory
from simulations.engines.workers import WorkerTask
from simulations.experiments.expansion import Expansion, expand
from simulations.experiments.experiment import read_experiment
from simulations.results.records import COMPOSITE_METRICS, METRICS, RunRecord, read_run
from tests.programs import Line

OTHERS = ("grad_phi_sq", "rmse", "mae", "r2", "deviance", "suboptimality", *COMPOSITE_METRICS, *OF_TIMES)
RANKING = [name for name in METRICS if name not in OTHERS]  # metrics of a binary classifier
SMALL = """
title = "Two methods on digits"
paper = "A paper"
figure = "Table 9"
clients = 2
metrics = ["auc", "loss"]
curve = "{method} {K}"

[config]
model = "linear"
num-server-rounds = 2
checkpoint-every = 0
fedx.gamma = 0.5

[profiles.smoke]
minutes = 0.1
seeds = 1
only = { K = [1] }
num-server-rounds = 1

[profiles.quick]
minutes = 2
seeds = 2

[axes]
steps = [{ at = { K = 1 }, local-steps = 1 }, { at = { K = 2 }, local-steps = 2 }]

[[runs]]
name = "FedX"
strategy = "fedx1"

[[runs]]
name = "Local SGD"
strategy = "local-sgd"
learning-rate = 0.4

[[paper-values]]
method = "FedX"
at = { K = 2 }
mean = 0.75
std = 0.01

[[paper-values]]
method = "Local SGD"
metric = "loss"
at = { K = 1 }
mean = 0.5
source = "Table 9, K = 1"
"""
# AUCs of a run by round, from its coordinates and config; None: unfinished; a text: the reason of its failure
Aucs = Callable[[Mapping[str, Any]], Sequence[float] | str | None]


def write(folder: Path, *changes: tuple[str, str], name: str = "small") -> Path:
    """Write `SMALL` with some texts replaced."""
    text = SMALL
    for before, after in changes:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    (folder / f"{name}.toml").write_text(text)
    return folder / f"{name}.toml"


def adding(text: str) -> tuple[str, str]:
    """Return a change of `SMALL` that adds tables."""
    return '[[paper-values]]\nmethod = "FedX"', f'{text}\n[[paper-values]]\nmethod = "FedX"'


def expanded(
    folder: Path, *changes: tuple[str, str], profile: str = "quick", seeds: int | None = None, data: Path | None = None
) -> Expansion:
    return expand(read_experiment(write(folder, *changes)), profile, seeds, data)


def fake(
    path: Path,
    config: Mapping[str, Scalar] | None = None,
    auc: Sequence[float] = (0.5, 0.7, 0.8),
    clients: int | None = 4,
    failure: str = "",
    missing: bool = False,
) -> Path:
    """Write a run directory with these AUCs in rounds 0, 1, ..., and half of them as its other metrics.

    Without ``clients`` it has no result; with ``missing`` partition 1 was dropped in the last round.
    """
    resolved = parse_run_config({**(config or {}), "output-dir": str(path.parent), "run-name": path.name}).resolve()
    path.mkdir(parents=True)
    (path / "config.toml").write_text(tomli_w.dumps(resolved))
    cost = {"bytes_up": 10, "bytes_down": 30, "seconds": 0.5}
    lines = [{"round": r, **dict.fromkeys(RANKING, value / 2), "auc": value, **cost} for r, value in enumerate(auc)]
    if missing:
        lines[-1]["dropped"] = {"1": "broke"}
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if clients:
        result = {"strategy": resolved["strategy"], "clients": clients, "wall_seconds": 9.0}
        (path / "result.json").write_text(json.dumps(result))
    if failure:
        (path / "failure.json").write_text(json.dumps({"reason": failure}))
    return path


def recorded(expansion: Expansion, folder: Path, aucs: Aucs) -> dict[str, RunRecord]:
    """Return records of fabricated runs by name."""
    found = {}
    for run in expansion.runs:
        curve = aucs({**run.line.at, **run.config})
        if curve is not None:
            path = folder / run.name
            assert not isinstance(curve, str)
            found[run.name] = read_run(fake(path, add_directory(run.config, path), curve, clients=2))
    return found


def refusal(command: Line, *arguments: object) -> str:
    """Return a command's error for wrong input: one line on stderr, and exit code 1."""
    code, out, err = command(*arguments)
    assert (code, out, err[:7], err.count("\n")) == (1, "", "error: ", 1)
    return err


class Runs:
    """A stand-in for the worker processes that writes run directories and records their names."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.aucs: Aucs = lambda config: (0.5, 0.6, 0.7 + 0.1 * config["seed"])
        self.missing: Callable[[Mapping[str, Any]], bool] = lambda config: False
        self.interrupt_after = 1000

    def __call__(self, tasks: Sequence[WorkerTask], jobs: int, ended: Callable[[WorkerTask, str], None]) -> None:
        for task in tasks:
            if len(self.names) == self.interrupt_after:
                raise KeyboardInterrupt
            self.names.append(task.name)
            assert sorted(task.metrics) == ["auc", "loss"]
            path = Path(str(task.config["output-dir"])) / task.name
            found = self.aucs(task.config)
            if found is None or isinstance(found, str):
                fake(path, task.config, clients=None)
                ended(task, found or "")
            else:
                fake(path, task.config, found, clients=task.clients, missing=self.missing(task.config))
                ended(task, "")


def replace_tuning(monkeypatch: pytest.MonkeyPatch, run_trials: Callable[..., None]) -> None:
    """Replace Ray with a function that runs a sweep's trials."""
    module = ModuleType("simulations.sweeps.tuning")
    monkeypatch.setattr(module, "run_trials", run_trials, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def not_drawn(expansion: Expansion, records: Mapping[str, RunRecord], folder: Path) -> None:
    if records:
        (folder / "curves.png").write_text(" ".join(records))
        (folder / "curves.svg").write_text(f"<svg><desc>{len(records)} runs</desc></svg>")


def table(out: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((out / "table.csv").read_text().splitlines()))
