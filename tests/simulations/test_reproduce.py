"""Tests of `reproduce`: the runs, the kept results, and the table."""

import csv
import html
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulations.engines.workers import WorkerTask, _reason
from simulations.experiments.expansion import expand
from simulations.experiments.experiment import find_experiment, find_packaged
from simulations.experiments.reproduce import Reproduction
from simulations.results.records import read_run
from tests.battery.federation import Run
from tests.programs import PROJECT, Line
from tests.refusals import states
from tests.simulations.fabricated import Runs, expanded, refusal, table, write

slow = pytest.mark.slow
ONE_OF_EACH_FAMILY = ("fedx-fig1", "scgdam-fig4", "fedsgda-fig2", "composite-fig1", "vfb2-table2")
SCORE = "0.7500 ± 0.0707"


def test_what_a_reproduction_leaves(command: Line, runs: Runs, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, told, err = command("reproduce", write(tmp_path, ('figure = "Table 9"', 'figure = "Table|9"')), "--out", out)
    assert code == 0
    pictures, tables = ["curves.png", "curves.svg"], ["report.html", "runs", "runs.csv", "table.csv", "table.md"]
    assert sorted(path.name for path in out.iterdir()) == [".lock", *pictures, "experiment.toml", *tables]
    assert len(err.splitlines()) == 8
    assert err.splitlines()[0] == "1/8  finished  FedX  digits  K = 1  seed 0  auc 0.7000  9.0 s"
    assert err.splitlines()[-1].startswith("8/8  finished  Local SGD  digits  K = 2  seed 1  auc 0.8000")
    assert (out / "curves.png").read_text().split() == runs.names

    found = table(out)
    assert [(row["method"], row["setting"], row["metric"], row["seeds"]) for row in found] == [
        (method, f"K = {k}", metric, "2")
        for method in ("FedX", "Local SGD")
        for k in (1, 2)
        for metric in ("auc", "loss")
    ]
    columns = "experiment dataset method setting metric mean std seeds planned not_finite"
    assert " ".join(found[0]) == f"{columns} paper paper_std paper_source tail_mean tail_std"
    mean, std = float(found[0]["mean"]), float(found[0]["std"])
    assert (mean, std) == (pytest.approx(0.75), pytest.approx(0.1 / 2**0.5))
    assert (found[2]["paper"], found[2]["paper_std"], found[2]["paper_source"]) == ("0.75", "0.01", "Table|9")
    assert (found[0]["paper"], found[0]["paper_source"]) == ("", "")

    raw = list(csv.DictReader((out / "runs.csv").read_text().splitlines()))
    assert [(row["method"], row["K"], row["seed"], f"{float(row['auc']):.6f}") for row in raw[:3]] == [
        ("FedX", "1", "0", "0.700000"),
        ("FedX", "1", "1", "0.800000"),
        ("FedX", "2", "0", "0.700000"),
    ]

    lines = told.splitlines()
    assert lines[0].split("  ")[0] == "data set"
    assert SCORE in lines[1]
    assert lines[-1] == f"table.csv, table.md, report.html, runs.csv, curves.png, curves.svg: in {out}"
    lines = (out / "table.md").read_text().splitlines()
    assert lines[0] == "# Two methods on digits"
    assert lines[2] == "A paper, Table|9. Experiment `small`, profile `quick`, 2 seeds."
    assert lines[4].split(" | ")[1:4] == ["method", "setting", "metric"]
    assert lines[8].split(" | ")[1:] == ["FedX", "K = 2", "auc", SCORE, SCORE, "2", "0.7500 ± 0.0100", "Table\\|9 |"]
    assert "not of profile `quick`" in lines[-1]


def test_a_failed_run_is_told_and_the_others_are_there(command: Line, runs: Runs, tmp_path: Path) -> None:
    def aucs(config: Mapping[str, Any]) -> Sequence[float] | str:
        return "the model has\ndiverged" if (config["strategy"], config["seed"]) == ("fedx1", 1) else (0.5, 0.6)

    runs.aucs = aucs
    out = tmp_path / "out"
    code, told, err = command("reproduce", write(tmp_path), "--out", out)
    assert code == 1
    assert "1 of 2" in told
    assert [line.split("  ")[1] for line in err.splitlines()[:-1]].count("failed") == 2
    told_last = "error: 2 of 8 runs failed; the first, fedx_digits_k-1_seed-1: the model has diverged"
    assert err.splitlines()[-1] == told_last
    assert [row["seeds"] for row in table(out)] == ["1"] * 4 + ["2"] * 4
    assert "- FedX  digits  K = 2  seed 1: the model has diverged" in (out / "table.md").read_text()
    assert read_run(out / "runs" / "fedx_digits_k-1_seed-1").reason == "the model has\ndiverged"
    code, told, err = command("reproduce", write(tmp_path), "--out", out, "--json", "--quiet")
    assert (code, len(err.splitlines())) == (1, 1)
    assert list(json.loads(told)["failed"]) == ["fedx_digits_k-1_seed-1", "fedx_digits_k-2_seed-1"]
    # if all runs fail, no figure is drawn
    runs.aucs = lambda config: "no"
    code, told, _ = command("reproduce", write(tmp_path), "--out", tmp_path / "none")
    assert code == 1
    assert not list((tmp_path / "none").glob("curves.*"))
    assert told.splitlines()[-1].startswith("table.csv, table.md, report.html: in ")


@pytest.mark.parametrize(
    ("only", "made"),
    [
        (["K=2"], ["fedx_digits_k-2_seed-0", "local-sgd_digits_k-2_seed-0"]),
        (["K=2", 'method="FedX"'], ["fedx_digits_k-2_seed-0"]),
        (["K=3"], "--only.K: got 3, allowed: 1, 2"),
        (["steps=3"], "--only.steps: got 3, allowed: no value, since there is no such coordinate"),
        (["K"], "--only: got 'K', of which 'K' is not a pair, allowed: "),
    ],
)
def test_only_some_runs(command: Line, runs: Runs, tmp_path: Path, only: list[str], made: list[str] | str) -> None:
    texts = [word for text in only for word in ("--only", text)]
    code, _, err = command("reproduce", write(tmp_path), "--seeds", 1, "--out", tmp_path / "out", *texts)
    if isinstance(made, str):
        assert (code, states(err, made), runs.names) == (1, True, [])
    else:
        assert (code, runs.names) == (0, made)
        command("reproduce", write(tmp_path), "--seeds", 1, "--out", tmp_path / "out")
        assert len(runs.names) == 4  # only the other runs


def test_finished_runs_are_not_run_again(command: Line, runs: Runs, tmp_path: Path) -> None:
    out, path = tmp_path / "out", write(tmp_path)
    command("reproduce", path, "--out", out, "--seeds", 1)
    unfinished, failed, *kept = (out / "runs" / name for name in runs.names)
    (unfinished / "result.json").unlink()
    (failed / "failure.json").write_text('{"reason": "diverged"}')
    (failed / "trace").touch()
    tables = (out / "table.csv").read_text()
    written = [(run / "result.json").stat().st_mtime_ns for run in kept]
    runs.names.clear()
    code, _, err = command("reproduce", path, "--out", out, "--seeds", 1)
    assert code == 0
    assert runs.names == [unfinished.name, failed.name]
    assert [line.split()[0] for line in err.splitlines()] == ["3/4", "4/4"]
    assert not (failed / "trace").exists()
    assert [(run / "result.json").stat().st_mtime_ns for run in kept] == written
    assert (out / "table.csv").read_text() == tables
    runs.names.clear()
    command("reproduce", path, "--out", out, "--seeds", 2)
    assert [name.endswith("seed-1") for name in runs.names] == [True] * 4


RATE = "learning-rate = 0.4"


@pytest.mark.parametrize(
    ("name", "changes", "profile", "part"),
    [
        (
            "other",
            [],
            "quick",
            "contains experiment 'small', profile 'quick', allowed: experiment 'other', profile 'quick';",
        ),
        (
            "small",
            [],
            "smoke",
            "contains experiment 'small', profile 'quick', allowed: experiment 'small', profile 'smoke';",
        ),
        (
            "small",
            [(RATE, "learning-rate = 0.2")],
            "quick",
            "finished with another learning-rate, allowed: a directory with runs of the same plan;",
        ),
        (
            "small",
            [(RATE, "clients = 3")],
            "quick",
            "another learning-rate, clients, allowed: a directory with runs of the same plan;",
        ),
        (
            "small",
            [("minutes = 2", "minutes = 2\ninjected = { delay = 0.1 }")],
            "quick",
            "injected = [{'delay': 0.1}];",
        ),
        ("small", [(RATE, f'{RATE}\nengine = "centralized"')], "quick", "another engine"),
    ],
)
def test_another_s_directory_is_refused(
    command: Line, runs: Runs, tmp_path: Path, name: str, changes: list[tuple[str, str]], profile: str, part: str
) -> None:
    out = tmp_path / "out"
    command("reproduce", write(tmp_path), "--out", out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    runs.names.clear()
    path = write(tmp_path, *changes, name=name)
    err = refusal(command, "reproduce", path, "--out", out, "--profile", profile)
    assert runs.names == []
    assert [text for text in (part, "set --out to another directory", str(out)) if not states(err, text)] == []
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_directory_of_something_else_is_refused(command: Line, runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    err = refusal(command, "reproduce", write(tmp_path), "--out", tmp_path / "out")
    assert "is not empty and contains no reproduction" in err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]
    err = refusal(command, "reproduce", write(tmp_path), "--out", tmp_path / "out" / "thesis.tex")
    assert "which cannot be created" in err


def test_two_at_once_are_refused(command: Line, runs: Runs, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Reproduction(expanded(tmp_path), out).open():
        assert "another process" in refusal(command, "reproduce", write(tmp_path), "--out", out)
    assert command("reproduce", write(tmp_path), "--out", out)[0] == 0


def test_ctrl_c_keeps_and_shows_what_has_finished(command: Line, runs: Runs, tmp_path: Path) -> None:
    runs.interrupt_after = 3
    out = tmp_path / "out"
    code, told, err = command("reproduce", write(tmp_path), "--out", out)
    assert (code, told) == (130, "")
    assert err.splitlines()[-1] == "interrupted: 3 of 8 runs have finished; the same command continues"
    assert [row["seeds"] for row in table(out)] == ["1"] * 6 + ["0"] * 2
    assert "5 runs not made yet" in (out / "table.md").read_text()
    assert (out / "curves.png").read_text().split() == runs.names
    done, runs.interrupt_after = list(runs.names), 1000
    assert command("reproduce", write(tmp_path), "--out", out)[0] == 0
    assert len(runs.names) == 8
    assert set(runs.names[3:]) & set(done) == set()


# Each experiment's smoke profile, without processes.


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_all(tasks: Sequence[WorkerTask], jobs: int, ended: Callable[[WorkerTask, str], None]) -> None:
        for task in tasks:
            ended(task, _reason(task))

    monkeypatch.setattr("simulations.experiments.reproduce.run_all", run_all)


@pytest.mark.usefixtures("in_this_process")
def test_a_federation_and_a_reference_of_vertical_learning_are_run(command: Line, tmp_path: Path) -> None:
    reference = 'strategy = "vfb2-svrg"\nengine = "nonfederated"\ndataset = "breast-cancer"\nnum-server-rounds = 3'
    evaluation = ("fedx.gamma = 0.5", "evaluate-every = 2\npictures = false")
    path = write(tmp_path, ('strategy = "local-sgd"', reference), evaluation)
    assert command("reproduce", path, "--out", tmp_path / "out", "--seeds", 1)[0] == 0
    names = ("fedx_digits", "local-sgd_breast-cancer")
    federation, record = (read_run(tmp_path / "out" / "runs" / f"{name}_k-1_seed-0") for name in names)
    assert (federation.result["engine"], federation.result["clients"]) == ("in-process", 2)
    assert (record.result["engine"], record.result["clients"]) == ("nonfederated", 1)
    assert list(record.curve("auc")) == [0, 2, 3]
    assert record.metrics["auc"] > 0.9


@slow
@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.gate] * (name in ONE_OF_EACH_FAMILY)) for name in find_packaged()]
)
def test_the_smoke_of_every_packaged_experiment(command: Line, tmp_path: Path, name: str) -> None:
    """The profile runs on bundled data; it measures nothing."""
    code, _, err = command("reproduce", name, "--out", tmp_path, "--profile", "smoke")
    assert code == 0, err
    found = table(tmp_path)
    expansion = expand(find_experiment(name), "smoke")
    metrics = expansion.experiment.metrics
    wanted = sorted((line.method, line.setting, metric) for line in expansion.lines for metric in metrics)
    assert sorted((row["method"], row["setting"], row["metric"]) for row in found) == wanted
    assert {row["seeds"] for row in found} == {str(expansion.seeds)}
    assert all(np.isfinite(float(row["mean"])) for row in found)
    told = (tmp_path / "table.md").read_text("utf-8")
    page = (tmp_path / "report.html").read_text("utf-8")
    for line in expansion.lines:
        assert line.method in told
        assert html.escape(line.method) in page
    assert "Failed runs" not in told
    assert "<svg" in page
    assert (tmp_path / "curves.png").stat().st_size > 1000


# The command, as a user starts it.


def gone(group: int) -> bool:
    """Return whether a group's processes end within some seconds."""
    for _ in range(50):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def reproduce(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "simulations", "reproduce", *map(str, arguments)]


@slow
def test_the_command(tmp_path: Path) -> None:
    """Its runs equal the runs of `run` and `centralized`, bit for bit; --json is all of stdout."""
    path = write(tmp_path, ("learning-rate = 0.4", 'engine = "centralized"'))
    command = reproduce(path, "--out", tmp_path / "out", "--profile", "smoke", "--json")
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert [row["seeds"] for row in json.loads(done.stdout)["rows"]] == [1] * 4
    assert len(done.stderr.splitlines()) == 2
    shared = 'model="linear" num-server-rounds=1 local-steps=1 checkpoint-every=0 fedx.gamma=0.5'
    for name, engine, strategy in (("fedx", "run", "fedx1"), ("local-sgd", "centralized", "local-sgd")):
        plain = tmp_path / engine
        command = [sys.executable, "-m", "simulations", engine, "--out", str(plain), "--clients", "2", "--quiet"]
        subprocess.run([*command, "-c", f'{shared} strategy="{strategy}"'], cwd=PROJECT, check=True)
        kept = Run(tmp_path / "out" / "runs" / f"{name}_digits_k-1_seed-0")
        assert kept.model_bytes == Run(plain).model_bytes


def interrupted(command: Sequence[str], out: Path, early: bool) -> int:
    """Send Ctrl-C while the processes start, or after the first run; return the number of finished runs."""
    with subprocess.Popen(
        command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stderr is not None
            while early and not (out / "experiment.toml").exists():
                time.sleep(0.05)
            time.sleep(0.5 if early else 0)
            first = "" if early else process.stderr.readline()
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of the command
            told, err = process.communicate(timeout=60)
            assert early or "finished" in first
            assert (process.returncode, told) == (130, ""), err
            assert "Traceback" not in err
            assert err.splitlines()[-1].startswith("interrupted: ")
            assert gone(process.pid)
        finally:
            process.kill()
    return len(list(out.glob("runs/*/result.json")))


@slow
def test_ctrl_c_leaves_no_process_and_the_same_command_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = write(tmp_path, ("num-server-rounds = 2\n", "num-server-rounds = 60\nevaluate-every = 60\n"))
    command = reproduce(path, "--out", out, "--jobs", 2)
    assert interrupted(command, out, early=True) == 0
    assert 1 <= interrupted(command, out, early=False) < 8
    results = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/result.json")}
    done = subprocess.run([*command, "--quiet"], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(list(out.glob("runs/*/result.json"))) == 8
    assert {path: path.stat().st_mtime_ns for path in results} == results
    assert [row["seeds"] for row in table(out)] == ["2"] * 8
