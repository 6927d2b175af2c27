"""Errors of ``reproduce --tune``: the grid of an experiment's file, and the values that were chosen from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

from simulations.choosing import Choosing
from simulations.expansion import expand
from simulations.experiment import read_experiment
from simulations.workers import Task, _reason
from tests.apps.errors.experiments import PAGE, changed, reproduce
from tests.apps.errors.row import Row, Says, called

TUNED = """
experiment = "small"
profile = "quick"
metric = "auc"
mode = "max"
seeds = 1
validation-fraction = 0.2

[[chosen]]
at = { method = "FedX" }
values = { learning-rate = 0.1 }
grid = { learning-rate = [0.01, 0.1] }
points = [{ values = { learning-rate = 0.1 }, finished = 1, mean = 0.8 }]
"""
RATES = "[tune]\ngrid.learning-rate = [0.01, 0.1]\n"


def tune(name: str, text: str, *changes: tuple[str, str], says: Says) -> Row:
    """A choice from what ``text`` says at the end of the experiment's file."""
    return reproduce(name, ("", f"\n{text}"), *changes, says=says, options=("--tune",))


def tuned(name: str, before: str, after: str, *, says: Says) -> Row:
    """A reproduction whose directory has chosen values."""
    assert TUNED.count(before) == 1
    here = 'name = "small"\n[reproduced]\nprofile = "quick"\n'
    return reproduce(
        name, says=says, files={"run/tuned.toml": TUNED.replace(before, after), "run/experiment.toml": here}
    )


def unlucky(tmp: Path) -> None:
    """No point of the grid can read its data; the runs are made in this process."""

    def one_by_one(tasks: Sequence[Task], jobs: int, ended: Callable[[Task, str], None]) -> None:
        for task in tasks:
            ended(task, _reason(task))

    data = f'model = "linear"\ndataset = "csv"\ndata-dir = "{tmp}/none"'
    (tmp / "small.toml").write_text(changed(("", f"\n{RATES}"), ('model = "linear"', data)))
    choosing = Choosing(expand(read_experiment(tmp / "small.toml"), "quick"), tmp / "run")
    with patch("simulations.reproduce.run_all", one_by_one), choosing.open():
        choosing.run(1, lambda line: None)


ROWS = [
    # keys of [tune]
    reproduce(
        "nothing to tune",
        says=("--tune", "'small' has no [tune]", "expected one that says what to choose from", "leave --tune out"),
        options=("--tune",),
    ),
    tune(
        "tuning without a grid", "[tune]", says=("tune", "there is no grid", "expected one at least", "give tune.grid")
    ),
    tune(
        "key of tuning that is unknown",
        f"{RATES}metrc = 3",
        says=("tune.metrc", "unknown key", "did you mean 'metric'?", PAGE),
    ),
    tune(
        "key of tuning in a profile that is unknown",
        f"{RATES}profiles.quick.seed = 3",
        says=("tune.profiles.quick.seed", "unknown key", "did you mean 'seeds'?", PAGE),
    ),
    tune(
        "grid of a number",
        "[tune]\ngrid.learning-rate = 0.1",
        says=("tune.grid: learning-rate", "got 0.1", "allowed: a list", PAGE),
    ),
    tune(
        "value of a grid twice",
        "[tune]\ngrid.learning-rate = [0.1, 0.1]",
        says=("tune.grid: learning-rate", "got [0.1, 0.1]", "allowed: once", "leave one out"),
    ),
    tune(
        "grid of a key that the command sets",
        "[tune]\ngrid.seed = [1, 2]",
        says=("tune.grid: seed", "got [1, 2]", "the command sets it", "leave it out"),
    ),
    tune(
        "point that is wrong",
        "[tune]\ngrid.learning-rate = [-1.0]",
        says=("learning-rate", "got -1.0", "a number > 0", "`python -m simulations list keys`"),
    ),
    tune(
        "points of one name",
        "[tune]\ngrid.client-shift = [-0.1, 0.1]",
        says=("tune", "one run directory, fedx_digits_k-1_client-shift-0.1", "values that differ in", "change one"),
    ),
    tune(
        "tuning of no method",
        f"{RATES}methods.FedY = {{}}",
        says=("tune.methods", "got 'FedY'", "allowed: FedX, Local SGD", PAGE),
    ),
    tune(
        "tuning at no run",
        f"{RATES}at = {{ K = 7 }}",
        says=("tune.at", "with K = 7 nothing is chosen", "allowed: coordinates that each method has", "leave some out"),
    ),
    tune(
        "tuning on the test rows",
        f"{RATES}validation-fraction = 0.0",
        says=("validation-fraction", "got 0, but 'auc'", "a metric of the training problem", "set it above 0"),
    ),
    called(
        "values that all fail",
        unlucky,
        says=("--tune", "no value for FedX", "expected one at least", "change the file's [tune]"),
    ),
    # chosen values
    tuned(
        "values of another experiment",
        'experiment = "small"',
        'experiment = "other"',
        says=("tuned.toml", "got experiment 'other'", "not 'small', 'quick'", "--tune writes it anew"),
    ),
    tuned(
        "values of no run",
        'at = { method = "FedX" }',
        'at = { method = "FedX", L = 3 }',
        says=("tuned.toml", "has values for method = FedX, L = 3", "allowed: coordinates", "--tune writes it anew"),
    ),
    tuned(
        "values that are not TOML",
        "seeds = 1",
        "seeds = ",
        says=("{tmp}/run/tuned.toml", "cannot be read", "expected TOML", "--tune writes it anew"),
    ),
    tuned(
        "values of no seed",
        "seeds = 1",
        "seeds = 0",
        says=("tuned.toml: seeds", "got 0", "greater than or equal to 1", "--tune writes it anew"),
    ),
]
