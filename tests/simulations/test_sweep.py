"""Tests of `sweep`: the varied keys, the trials, the kept results, early stopping, and the command on Ray."""

import csv
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from apps.config import ConfigError
from simulations.arguments import add_directory
from simulations.engines.stepped import SteppedRun
from simulations.results.records import METRICS, read_run
from simulations.sweeps.plan import Sweep, Trial, trial_name
from simulations.sweeps.ranges import parse_grid, parse_random
from simulations.sweeps.standings import Outcome, Trials
from simulations.sweeps.sweep import open_sweep
from tests.battery.federation import Run, federate, patients
from tests.programs import PROJECT, Line
from tests.refusals import refuses, states
from tests.simulations.fabricated import fake, refusal, replace_tuning

SMALL = {"model": "linear", "num-server-rounds": 3, "local-steps": 2, "checkpoint-every": 0}
DEFAULTS = {"learning-rate": 0.1, "batch-size": 32}  # `federate` has other defaults
TEXT = 'model="linear" num-server-rounds=3 local-steps=2 checkpoint-every=0'


@pytest.fixture(autouse=True)
def _without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("Ray was asked for")

    replace_tuning(monkeypatch, never)


# Varied keys.


def test_a_grid_is_written_as_in_toml() -> None:
    assert parse_grid(["learning-rate=0.01,1e-1, 1", 'strategy="a","b=c"', "resume=true,false"]) == {
        "learning-rate": [0.01, 0.1, 1],
        "strategy": ["a", "b=c"],
        "resume": [True, False],
    }


@pytest.mark.parametrize(
    ("text", "low", "high"), [("uniform(0.1,1)", 0.1, 1), ("loguniform(1e-3,1)", 1e-3, 1), ("randint(2,5)", 2, 5)]
)
def test_draws_stay_in_their_range_and_fill_it(text: str, low: float, high: float) -> None:
    trials = draws(text, 200)
    assert low <= min(trials) <= low * 1.2
    assert high * 0.8 <= max(trials) <= high
    assert sorted(trials)[100] == pytest.approx((low * high) ** 0.5 if "log" in text else (low + high) / 2, rel=0.35)


def draws(text: str, samples: int, search_seed: int = 0) -> list[Any]:
    sweep = Sweep(2, {}, random=parse_random([f"x={text}"]), samples=samples, search_seed=search_seed)
    return [point["x"] for point in sweep._points()]


def test_draws_are_addressed() -> None:
    assert draws("uniform(0,1)", 3) == draws("uniform(0,1)", 9)[:3]
    assert draws("uniform(0,1)", 3) != draws("uniform(0,1)", 3, search_seed=1)
    assert set(draws('choice("a","b")', 20)) == {"a", "b"}
    two = Sweep(2, {}, grid={"y": [1, 2]}, random=parse_random(["z=uniform(0,1)", "x=uniform(0,1)"]), samples=3)
    points = two._points()
    assert len(Sweep(2, {}, random=parse_random(["local-steps=choice(1,2)"]), samples=20).trials()) == 2
    assert [point["x"] for point in points] == draws("uniform(0,1)", 3) * 2  # the same at every grid point
    assert all(point["x"] != point["z"] for point in points)


def test_trials_are_points_times_seeds() -> None:
    sweep = Sweep(2, {**SMALL, "seed": 5}, grid={"learning-rate": [0.1, 1]}, seeds=2)
    trials = sweep.trials()
    names = [f"learning-rate={rate}_seed={seed}" for rate in (0.1, 1) for seed in (5, 6)]
    assert [trial.name for trial in trials] == names
    assert trials[1].config == {**SMALL, "learning-rate": 0.1, "seed": 6, "validation-fraction": 0.2}


@pytest.mark.parametrize("value", ["/a/b", "/a-b", "x" * 200, "x" * 201, "é", "..", "a b", "a,b"])
def test_a_name_is_a_folder_s_name_and_no_other_s(value: str) -> None:
    others = ["/a/b", "/a-b", "x" * 200, "x" * 201, "é", "..", "a b", "a,b", "-a-b"]
    name = trial_name({"data-dir": value}, 0)
    assert name == trial_name({"data-dir": value}, 0)
    assert len(name) <= 120
    assert not set(name) & set("/\\, \n:")
    assert name not in [trial_name({"data-dir": other}, 0) for other in others if other != value]


# Wrong input: one line, and Ray is not started.

GRID = ["--grid", "learning-rate=0.1,1"]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--grid", "learning-rate"], ["--grid 'learning-rate'", "key=value"]),
        (["--grid", "learning-rate=0.1,[1]"], ["numbers"]),
        (["--grid", "learning-rate=0.1] # ,1"], ["numbers"]),
        (["--grid", "learning-rate=0.1,0.10"], ["0.1", "twice"]),
        ([*GRID, "--grid", "learning-rate=3"], ["learning-rate", "already varied"]),
        ([*GRID, "--random", "learning-rate=uniform(0,1)"], ["learning-rate", "--grid and by --random"]),
        (["--grid", "learning-rat=0.1,1"], ["learning-rat:", "unknown", "'learning-rate'"]),
        (["--grid", 'output-dir="a"'], ["output-dir", "the sweep sets it"]),
        (["--grid", "seed=1,2"], ["seed", "--seeds"]),
        (["--random", "learning-rate=0.1"], ["key=distribution", "uniform(low,high)"]),
        (["--random", "learning-rate=normal(0,1)"], ["'normal'", "loguniform(low,high)", "choice"]),
        (["--random", "learning-rate=uniform(0,inf)"], ["two finite numbers", "got 0, inf"]),
        (["--random", "local-steps=randint(1.5,3)"], ["two integers"]),
        (["--random", "learning-rate=loguniform(1,0.1)"], ["got 1, 0.1", "low less than high and above 0"]),
        ([*GRID, "--samples", "3"], ["--samples", "--random"]),
        ([*GRID, "--grace", "3"], ["--grace", "--asha"]),
        ([*GRID, "--metric", "f1"], ["--metric", "'f1'", *METRICS]),
        ([*GRID, "-c", "resume=true"], ["resume", "--resume"]),
        ([*GRID, "-c", 'seed="a"'], ["seed", "'a'"]),
        ([*GRID, "--resume"], ["--resume: got --out", "which contains no sweep"]),
        ([*GRID, "--asha", "--grace", "4"], ["--grace", "got 4", "3 rounds"]),
        ([], ["sweep: got no trials, allowed: at least two trials; add --grid, --random or --seeds"]),
        (
            ["--grid", "loss=psm,auprc"],
            ["--grid 'loss=psm,auprc': got 'psm,auprc'", 'write words as "psm","auprc"', "strings in double quotes"],
        ),
        (["--grid", "local-steps=2,3"], ["local-steps: got 2 by --config, but the key is also varied"]),
        (["--grid", "learning-rate=0.1,0.0"], ["trial learning-rate=0", "learning-rate: got 0.0"]),
    ],
)
def test_wrong_input_is_one_line(command: Line, tmp_path: Path, options: list[str], parts: list[str]) -> None:
    err = refusal(command, "sweep", "--out", tmp_path / "s", "-c", TEXT, *options)
    assert [part for part in parts if not states(err, part)] == []
    assert not (tmp_path / "s").exists()


def test_a_taken_directory_is_refused(command: Line, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "sweep.toml").write_text("kept")
    assert "--resume" in refusal(command, "sweep", "--out", tmp_path / "s", *GRID)
    assert (tmp_path / "s" / "sweep.toml").read_text() == "kept"


# Kept results.


def begin(tmp_path: Path, resume: bool = False, **more: Any) -> Trials:
    shared: dict[str, Any] = {"clients": 4, "grid": {"learning-rate": [0.1, 1]}, "seeds": 2}
    sweep = Sweep(**{**shared, **more, "config": {**SMALL, **more.get("config", {})}})
    return open_sweep(sweep, tmp_path / "s", resume=resume)


def finish(trials: Trials, trial: Trial, auc: tuple[float, ...] = (0.5, 0.9, 0.8), **more: Any) -> Path:
    return fake(trials.folder / trial.name, trials.config(trial), auc, **more)


def test_what_is_kept(tmp_path: Path) -> None:
    trials = begin(tmp_path)
    a, b, c, d = trials.waiting
    for trial, last in ((a, 0.6), (b, 0.8), (c, 0.9)):
        finish(trials, trial, (0.5, 0.95, last))
        trials.end(trial)
    finish(trials, d, clients=None, failure="diverged")
    trials.end(d)
    outcome = Outcome(trials)
    outcome.write()
    rows = list(csv.DictReader((tmp_path / "s" / "sweep.csv").read_text().splitlines()))
    columns = "trial learning-rate seed status auc best_auc rounds seconds reason rounds_with_missing_sites"
    assert " ".join(rows[0]) == columns
    assert [(row["status"], row["auc"], row["best_auc"], row["rounds"]) for row in rows[:3]] == [
        ("finished", auc, "0.95", "2") for auc in ("0.6", "0.8", "0.9")
    ]
    assert (rows[3]["learning-rate"], rows[3]["seed"], rows[3]["reason"]) == ("1", "1", "diverged")
    # one seed of the rate 1 failed, so its better mean does not count
    best = tomllib.loads((tmp_path / "s" / "best.toml").read_text())
    assert best == {**SMALL, "learning-rate": 0.1}
    assert (outcome.best.mean, outcome.best.finished) == (pytest.approx(0.7), 2)
    assert outcome.best.spread == pytest.approx(0.02**0.5)
    assert "diverged" in outcome.text()
    assert outcome.json()["trials"][3]["status"] == "failed"


def test_min_takes_the_least(tmp_path: Path) -> None:
    trials = begin(tmp_path, mode="min", seeds=1)
    for trial, last in zip(trials.waiting, (0.6, 0.4), strict=True):
        finish(trials, trial, (0.5, 0.2, last))
        trials.end(trial)
    best = Outcome(trials).best
    assert (best.varied, best.mean) == ({"learning-rate": 1}, 0.4)
    assert {trials.row(trial)["best"] for trial in trials.runs.values()} == {0.2}


def test_a_trial_whose_process_died_is_a_failed_run(tmp_path: Path) -> None:
    trials = begin(tmp_path)
    first, second, *_ = trials.waiting
    path = finish(trials, first, clients=None)
    trials.end(first, "killed")
    trials.end(second)
    assert read_run(path).reason == "killed"
    assert [trials.row(trial)["status"] for trial in (first, second)] == ["failed", "failed"]
    assert "got no run" in trials.failed[second.name]


def test_resume_keeps_what_ended_with_this_config(tmp_path: Path) -> None:
    before = begin(tmp_path)
    a, b, c, d = before.waiting
    finish(before, a)
    finish(before, b, clients=None, failure="stopped early: auc 0.5 after round 1 of 3")
    finish(before, c, clients=None, failure="diverged")
    finish(before, d, clients=None)
    before.write()
    assert "unfinished" in before.table.read_text()
    again = begin(tmp_path, resume=True)
    assert again.waiting == [c, d]
    assert [again.records[trial.name].status for trial in (a, b)] == ["finished", "stopped"]
    assert [(again.folder / trial.name).exists() for trial in (a, c, d)] == [True, False, False]


@pytest.mark.parametrize(
    ("change", "key"), [({"config": {"local-steps": 3}}, "local-steps"), ({"clients": 5}, "clients")]
)
def test_resume_refuses_a_trial_of_another_config(tmp_path: Path, change: dict[str, Any], key: str) -> None:
    path = finish(begin(tmp_path), begin(tmp_path, resume=True).waiting[0])
    with refuses(
        ConfigError, f"{path.name} that has finished with another {key}, allowed: a directory with runs of the same"
    ):
        begin(tmp_path, resume=True, **change)
    assert path.exists()


def test_resume_with_more_values_keeps_the_trials(tmp_path: Path) -> None:
    before = begin(tmp_path)
    finish(before, before.waiting[0])
    again = begin(tmp_path, resume=True, grid={"learning-rate": [0.1, 0.5, 1]})
    assert (len(again.records), len(again.waiting)) == (1, 5)
    assert tomllib.loads((tmp_path / "s" / "sweep.toml").read_text())["grid"]["learning-rate"] == [0.1, 0.5, 1]


def test_best_toml_is_a_config_file(command: Line, tmp_path: Path) -> None:
    trials = begin(tmp_path, grid={"fedx.gamma": [0.25]}, seeds=1)
    (trial,) = trials.waiting
    finish(trials, trial)
    trials.end(trial)
    Outcome(trials).write()
    code, *_ = command("run", "--out", tmp_path / "run", "--clients", 2, "-c", tmp_path / "s" / "best.toml", "--quiet")
    assert code == 0
    config = Run(tmp_path / "run").result["config"]
    assert (config["model"], config["num-server-rounds"], config["fedx"]["gamma"]) == ("linear", 3, 0.25)


# A run that waits at each round.


def stepped(path: Path) -> SteppedRun:
    return SteppedRun(3, add_directory(SMALL, path), 3)


@pytest.mark.parametrize("own_files", [False, True])
def test_a_stepped_run_is_the_plain_run(own_files: bool, tmp_path: Path) -> None:
    config: dict[str, Any] = dict(SMALL)
    nodes = [{"data-path": f"{tmp_path}/{site}.csv", "least-cell": 1} for site in range(3)] if own_files else []
    for site, node in enumerate(nodes):
        patients(40, site).drop(columns=["name", "sex"]).to_csv(str(node["data-path"]), index=False)
        config |= {"dataset": "csv", "partition": "own", "label-column": "ill", "positive-label": "yes"}
    plain, _ = federate(tmp_path / "plain", config | DEFAULTS, nodes=nodes)
    run = SteppedRun(3, add_directory(config, tmp_path / "stepped"), 3, nodes)
    rounds = []
    while (line := run.advance()) is not None:
        rounds.append(line["round"])
        assert not (tmp_path / "stepped" / "result.json").exists()
    assert rounds == [0, 1, 2]
    assert run.failure == ""
    assert Run(tmp_path / "stepped").untimed == plain.untimed
    assert Run(tmp_path / "stepped").model_bytes == plain.model_bytes
    run.stop("too late")
    assert read_run(tmp_path / "stepped").status == "finished"


def test_a_stepped_run_can_be_stopped_and_another_begun(tmp_path: Path) -> None:
    run = stepped(tmp_path / "a")
    run.advance()
    line = run.advance()
    assert line["round"] == 1
    run.stop("auc 0.5 after round 1 of 3")
    record = read_run(tmp_path / "a")
    assert (record.status, record.reason) == ("stopped", "stopped early: auc 0.5 after round 1 of 3")
    assert record.facts["rounds"] == 1
    assert run.failure == record.reason
    federate(tmp_path / "plain", SMALL, clients=3)  # the trial no longer listens to runs
    assert len(Run(tmp_path / "plain").lines) == 4
    other = stepped(tmp_path / "b")
    other.advance()
    other.fail("it has no gap")
    record = read_run(tmp_path / "b")
    assert (record.status, record.reason) == ("failed", "it has no gap")


@pytest.mark.parametrize(("metric", "mode"), [("auc", "max"), ("loss", "min"), ("grad_phi_sq", "min"), ("rmse", "min")])
def test_metric_modes(command: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str, mode: str) -> None:
    replace_tuning(monkeypatch, lambda *arguments: None)
    command("sweep", "--out", tmp_path / "s", "-c", TEXT, *GRID, "--metric", metric)
    assert tomllib.loads((tmp_path / "s" / "sweep.toml").read_text())["mode"] == mode


# On Ray: each test is one command, or a few in turn.

slow = pytest.mark.slow


def sweep_command(out: Path, *options: str, clients: Sequence[str] = ("--clients", "2")) -> list[str]:
    return [sys.executable, "-m", "simulations", "sweep", *clients, "--out", str(out), *options]


def call(out: Path, *options: str, **clients: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = sweep_command(out, *options, **clients)
    elsewhere = {**os.environ, "RAY_ADDRESS": "127.0.0.1:1"}  # only --address counts
    return subprocess.run(command, cwd=PROJECT, env=elsewhere, capture_output=True, text=True, check=False, timeout=600)


def statuses(out: Path) -> dict[str, str]:
    return {row["trial"]: row["status"] for row in csv.DictReader((out / "sweep.csv").read_text().splitlines())}


@pytest.mark.gate
@slow
def test_a_sweep(tmp_path: Path) -> None:
    """A grid with a configuration that fails; its trials equal the plain command's, bit for bit."""
    out = tmp_path / "s"
    options = ["-c", TEXT, "--grid", "fedx.positive-batch-size=16,100000", "--seeds", "2", "--jobs", "2", "--json"]
    done = call(out, *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["best"]["varied"] == {"fedx.positive-batch-size": 16}
    assert sorted(statuses(out).values()) == ["failed", "failed", "finished", "finished"]
    assert len(done.stderr.splitlines()) == 4 + 2  # one line a trial, two lines for the best, and no others
    assert "100000" in done.stderr
    assert sorted(path.name for path in out.iterdir()) == [
        *("best", "best.csv", "best.toml", "sweep.csv", "sweep.toml", "trials")
    ]
    for seed in range(2):
        config = {**SMALL, **DEFAULTS, "fedx.positive-batch-size": 16, "seed": seed}
        for folder, fraction in (("trials", 0.2), ("best", 0.0)):
            place = tmp_path / f"plain-{folder}-{seed}"
            plain, _ = federate(place, config | {"validation-fraction": fraction}, clients=2)
            trial = Run(out / folder / f"fedx.positive-batch-size=16_seed={seed}")
            assert trial.untimed == plain.untimed
            assert trial.model_bytes == plain.model_bytes


@slow
def test_asha_stops_the_worse_trials(tmp_path: Path) -> None:
    """Trials run one after the other, from the best to the worst: all but the first stop at the first rung."""
    out = tmp_path / "s"
    config = 'strategy="local-sgd" model="linear" num-server-rounds=12 local-steps=4 checkpoint-every=0'
    done = call(
        out, "-c", config, "--grid", "learning-rate=0.1,1e-5,1e-6", "--metric", "loss", "--asha", "--grace", "2"
    )
    assert done.returncode == 0, done.stderr
    assert list(statuses(out).values()) == ["finished", "stopped", "stopped"]
    for rate in ("1e-05", "1e-06"):
        run = read_run(out / "trials" / f"learning-rate={rate}_seed=0")
        assert run.status == "stopped"
        assert run.facts["rounds"] == 2
        assert run.reason.endswith("after round 2 of 12")
    assert tomllib.loads((out / "best.toml").read_text())["learning-rate"] == 0.1


@slow
def test_ctrl_c_and_resume(tmp_path: Path) -> None:
    out = tmp_path / "s"
    options = ["-c", TEXT, "-c", "num-server-rounds=40", "--grid", "learning-rate=0.01,0.02,0.03,0.04,0.05,0.06"]
    with subprocess.Popen(sweep_command(out, *options), cwd=PROJECT, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            first = process.stderr.readline()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert first.startswith("1/6  finished")
    assert process.returncode == 130, err
    assert "--resume" in err.splitlines()[-1]
    assert "Traceback" not in err
    kept = [name for name, status in statuses(out).items() if status == "finished"]
    assert 1 <= len(kept) < 6
    assert not any(status in ("stopped", "failed") for status in statuses(out).values())
    results = {name: (out / "trials" / name / "result.json").stat().st_mtime_ns for name in kept}
    refused = call(out, *options)
    assert (refused.returncode, "--resume" in refused.stderr) == (1, True)
    done = call(out, *options, "--resume", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert set(statuses(out).values()) == {"finished"}
    assert {name: (out / "trials" / name / "result.json").stat().st_mtime_ns for name in kept} == results


@slow
@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["-c", 'dataset="npz" data-dir="/nowhere.npz"'], ["all 2 trials failed", "/nowhere.npz"]),
        (["--address", "127.0.0.1:1"], ["127.0.0.1:1"]),
        (["--metric", "grad_phi_sq"], ["all 2 trials failed", "the run has no metric grad_phi_sq, only auc, "]),
    ],
)
def test_a_sweep_in_vain_is_one_line(tmp_path: Path, options: list[str], parts: list[str]) -> None:
    done = call(tmp_path / "s", "-c", TEXT, "--seeds", "2", "--quiet", *options)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert "Traceback" not in done.stderr
    assert [part for part in parts if part not in done.stderr] == []


# A model that ends its process at once, as the kernel does when memory runs out.
KILLER = """
import os

def net(shape):
    os.kill(os.getpid(), 9)
"""


@slow
def test_a_trial_whose_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "killer.py").write_text(KILLER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = call(tmp_path / "s", "-c", "num-server-rounds=1", "--grid", 'model="killer:net","linear"')
    assert done.returncode == 0, done.stderr
    assert list(statuses(tmp_path / "s").values()) == ["failed", "finished"]
    assert len(done.stderr.splitlines()) == 2 + 1
    assert "the trial's process ended: " in done.stderr
    assert "Traceback" not in done.stderr
