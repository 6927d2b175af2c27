"""Tests of the rows by which a sweep selects, and of the selected configuration's run on the test rows."""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from simulations.results.records import read_run
from simulations.sweeps.plan import Sweep
from tests.programs import Line
from tests.refusals import states
from tests.simulations.fabricated import fake, refusal, replace_tuning

TEXT = 'model="linear" num-server-rounds=2 checkpoint-every=0'
GRID = ("--grid", "learning-rate=0.1,0.5", "--seeds", "2")
OWN = {"partition": "own", "dataset": "csv", "label-column": "ill"}


@pytest.fixture(autouse=True)
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return fabricated runs: on validation rows the larger step is better, on test rows AUC is 0.1 less."""
    made = []

    def run_trials(trials: Any, storage: Any, jobs: int, address: str, ended: Any) -> None:
        for trial in trials.waiting:
            held = trial.config.get("validation-fraction", 0)
            auc = 0.6 + 0.2 * trial.config["learning-rate"] - 0.1 * (not held) + 0.01 * trial.seed
            fake(trials.folder / trial.name, trials.config(trial), (0.5, auc), clients=2)
            made.append(f"{trials.folder.name}/{trial.name} {held}")
            ended(trial, "")

    replace_tuning(monkeypatch, run_trials)
    return made


@pytest.mark.parametrize(("given", "fraction"), [("", 0.2), ("validation-fraction=0.3", 0.3)])
def test_validation_rows_choose(command: Line, ran: list[str], tmp_path: Path, given: str, fraction: float) -> None:
    out = tmp_path / "s"
    code, text, _ = command("sweep", "--out", out, "--clients", 2, "-c", f"{TEXT} {given}", *GRID)
    assert code == 0
    assert ran[:4] == [f"trials/learning-rate={rate}_seed={seed} {fraction}" for rate in (0.1, 0.5) for seed in (0, 1)]
    assert ran[4:] == [f"best/learning-rate=0.5_seed={seed} 0" for seed in (0, 1)]
    assert f"chosen by auc on validation rows, {100 * fraction:g} % of the training rows" in text
    told = "trained on all training rows, on the test rows: auc 0.6050 ± 0.0071 (2 of 2 seeds, in best/)"
    assert told in text
    best = (out / "best.toml").read_text()
    assert f"# {told}" in best
    assert tomllib.loads(best) == {**tomllib.loads(TEXT.replace(" ", "\n")), "learning-rate": 0.5}
    rows = list(csv.DictReader((out / "best.csv").read_text().splitlines()))
    assert [float(row["auc"]) for row in rows] == pytest.approx([0.6, 0.61])


def test_the_best_is_not_run_twice(command: Line, ran: list[str], tmp_path: Path) -> None:
    asked = ("sweep", "--out", tmp_path / "s", "--clients", 2, "-c", TEXT, *GRID)
    command(*asked)
    fake(tmp_path / "s" / "best" / "of another time")
    assert command(*asked, "--resume", "--json")[0] == 0
    assert len(ran) == 6
    assert not (tmp_path / "s" / "best" / "of another time").exists()


def test_the_test_rows_choose_where_that_is_asked_for(command: Line, ran: list[str], tmp_path: Path) -> None:
    asked = ("sweep", "--out", tmp_path / "s", "--clients", 2, "-c", TEXT, *GRID, "--select-on", "test")
    _, text, _ = command(*asked)
    assert "chosen by auc on the test rows, so this value is too optimistic" in text
    assert [line.split()[1] for line in ran] == ["0"] * 4
    found = json.loads(command(*asked, "--resume", "--json")[1])
    assert (found["select_on"], found["validation_fraction"], found["test"]) == ("test", 0.0, None)
    assert read_run(tmp_path / "s" / "trials" / "learning-rate=0.1_seed=0").config["validation-fraction"] == 0


@pytest.mark.parametrize(
    ("config", "metric", "select_on", "fraction"),
    [
        ({}, "auc", "validation", 0.2),
        ({"strategy": "composite"}, "objective", "validation", 0.0),
        ({"strategy": "fedsgda-mb", "dataset": "synthetic-pl", "loss": "synthetic-pl"}, "loss", "validation", 0.0),
        (OWN, "auc", "validation", 0.2),
        ({**OWN, "data-dir": "a.csv"}, "auc", "test", 0.0),
    ],
)
def test_what_is_held_out(config: dict[str, Any], metric: str, select_on: str, fraction: float) -> None:
    sweep = Sweep(2, config, seeds=2, metric=metric, select_on=select_on)
    trials = sweep.trials()
    assert {trial.fraction for trial in trials} == {trial.config.get("validation-fraction", 0.0) for trial in trials}
    assert {trial.fraction for trial in trials} == {fraction}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("-c", "validation-fraction=0"), "validation-fraction: got 0, allowed: a number above 0"),
        (("-c", "validation-fraction=0.3", "--select-on", "test"), "--select-on: got 'test', with validation-fraction"),
        (("--grid", "validation-fraction=0.1,0.2"), "validation-fraction: got values by --grid"),
        (
            ("-c", 'dataset="csv" partition="own" label-column="ill" data-dir="a.csv"'),
            "--select-on: got 'validation', but the server evaluates on its own file",
        ),
    ],
)
def test_what_cannot_choose(command: Line, tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    assert states(refusal(command, "sweep", "--out", tmp_path / "s", "--clients", 2, *GRID, *options), told)
