"""Errors of ``reproduce --tune``, of ``tuned.toml`` and of the run-config keys that both need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np

from problems.data import DataSpec
from problems.vertical.data import load_vertical
from simulations.choosing import Choosing
from simulations.expansion import expand
from simulations.experiment import read_experiment
from simulations.workers import Task
from tests.apps.errors.experiments import PAGE, SMALL, reproduce
from tests.apps.errors.row import Row, Says, called, run

GRID = "\n[tune]\ngrid.learning-rate = [0.1, 1.0]\n"
TUNED = """
experiment = "{name}"
profile = "quick"
metric = "auc"
mode = "max"
seeds = 1
validation-fraction = 0.2

[[chosen]]
at = {{ method = "{method}" }}
values = {{ learning-rate = 0.1 }}
grid = {{ learning-rate = [0.1] }}
points = [{{ values = {{ learning-rate = 0.1 }}, finished = 1, mean = 0.5 }}]
"""


def tune(name: str, text: str, *, says: Says) -> Row:
    return reproduce(name, ("", text), says=says, options=("--tune",))


def nothing_works(tmp: Path) -> None:
    def run_all(tasks: Sequence[Task], jobs: int, ended: Callable[[Task, str], None]) -> None:
        for task in tasks:
            ended(task, "the model has diverged")

    (tmp / "small.toml").write_text(SMALL + GRID)
    choosing = Choosing(expand(read_experiment(tmp / "small.toml"), "quick"), tmp / "run")
    with patch("simulations.reproduce.run_all", run_all), choosing.open():
        choosing.run(1, lambda line: None)


def two_rows(tmp: Path) -> None:
    np.savez(tmp / "two.npz", X=np.eye(2), y=[0.5, 1.5])
    load_vertical(DataSpec("npz", data_dir=str(tmp), validation_fraction=0.5), 2, regression=True)


ROWS = [
    tune(
        "nothing to choose",
        "",
        says=("--tune", "'small' has no [tune]", "run-config keys and their values", PAGE),
    ),
    tune(
        "points in one folder",
        '\n[tune]\ngrid.positive-label = ["3", "3 "]\n',
        says=("'small': tune", "two points", "one run directory", "leave one out"),
    ),
    called(
        "no value works",
        nothing_works,
        says=("--tune", "no value for FedX", "the model has diverged", "give other values"),
    ),
    tune(
        "choice on the test rows",
        GRID + "validation-fraction = 0.0\n",
        says=("tune.validation-fraction", "got 0", "allowed: a number above 0", PAGE),
    ),
    tune(
        "method of a grid that there is not",
        GRID + "methods.FedY = {}\n",
        says=("tune.methods", "got 'FedY'", "allowed: FedX, Local SGD", PAGE),
    ),
    tune(
        "no grid", "\n[tune]\n", says=("'small': tune", "there is no grid", "expected one at least", "give tune.grid")
    ),
    tune(
        "nothing is chosen for a run",
        GRID + "at = { K = 7 }\n",
        says=("tune.at", "with K = 7", "nothing is chosen for FedX", "leave coordinates out"),
    ),
    tune(
        "value of a grid that cannot be",
        "\n[tune]\ngrid.learning-rate = [-1.0]\n",
        says=("tune, FedX", "got -1.0", "allowed: ", PAGE),
    ),
    tune(
        "key of a grid that the command sets",
        "\n[tune]\ngrid.seed = [1]\n",
        says=("tune.grid: seed", "got [1]", "the command sets it", "leave it out"),
    ),
    tune(
        "grid that is no list",
        "\n[tune]\ngrid.learning-rate = 0.1\n",
        says=("tune.grid: learning-rate", "got 0.1", "allowed: a list of numbers", PAGE),
    ),
    tune(
        "value twice in a grid",
        "\n[tune]\ngrid.learning-rate = [0.1, 0.1]\n",
        says=("tune.grid: learning-rate", "got [0.1, 0.1]", "a value occurs twice", "leave one out"),
    ),
    # tuned.toml
    reproduce(
        "another experiment's choice",
        says=("tuned.toml", "got experiment 'other'", "not 'small'", "--tune"),
        files={"run/tuned.toml": TUNED.format(name="other", method="FedX")},
    ),
    reproduce(
        "choice for a run that there is not",
        says=("tuned.toml", "method = FedY", "which no run has", "--tune"),
        files={"run/tuned.toml": TUNED.format(name="small", method="FedY")},
    ),
    reproduce(
        "tuned.toml that is not TOML",
        says=("{tmp}/tuned.toml", "cannot be read", "expected what", "--tune"),
        files={"tuned.toml": "seeds = = 1"},
    ),
    reproduce(
        "tuned.toml with a wrong key",
        says=("{tmp}/tuned.toml: experiment", "is missing", "expected what", "--tune"),
        files={"tuned.toml": "seeds = 1"},
    ),
    # what both need
    run(
        "sites of columns",
        'strategy="vfb2-sgd" partition-sites=9',
        says=("partition-sites", "got 9", "allowed: 0", "leave it out"),
    ),
    run(
        "validation rows of a problem without rows",
        'strategy="fedsgda-mb" dataset="synthetic-pl" partition="natural" validation-fraction=0.5',
        says=("validation-fraction", "got 0.5", "must be 0", "leave it out"),
    ),
    run(
        "validation rows beside the server's file",
        'partition="own" dataset="csv" data-dir="a.csv" validation-fraction=0.2',
        says=("validation-fraction", "got 0.2", "with partition 'own'", "leave data-dir out"),
    ),
    called(
        "too few rows to hold any out",
        two_rows,
        says=("validation-fraction", "got 0.5", "2 training rows at least", "leave it out"),
    ),
]
