"""Tests of `compare`: several run directories as a table, as CSV, as JSON and as a picture."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from apps.evaluation.metric_names import BOOKKEEPING
from simulations.results.compare import Comparison
from simulations.results.figure import Curve, in_common
from simulations.results.records import read_run
from tests.battery.federation import federate
from tests.programs import Line
from tests.refusals import states
from tests.simulations.fabricated import RANKING, fake, refusal

PNG = b"\x89PNG\r\n"


def test_a_real_run(tmp_path: Path) -> None:
    run, _ = federate(tmp_path / "a", {"strategy": "fedx1", "seed": 3}, clients=2)
    record = read_run(run.path)
    facts, result = record.facts, run.result
    assert record.status == "finished"
    assert record.metrics == result["metrics"]
    assert list(record.metrics) == RANKING
    assert all(set(line) == BOOKKEEPING | set(RANKING) for line in record.lines)
    for name in ("strategy", "dataset", "seed", "rounds", "clients", "bytes_up", "bytes_down"):
        assert facts[name] == result[name], name
    assert facts["seconds"] == result["wall_seconds"]


def test_the_table(command: Line, tmp_path: Path) -> None:
    a = fake(tmp_path / "a", {"learning-rate": 0.1, "seed": 1})
    b = fake(tmp_path / "b", {"learning-rate": 0.5, "fedx.gamma": 0.3}, (0.5, 0.9))
    assert "what differs" not in command("compare", a, a)[1]
    code, out, err = command("compare", a, b)
    assert (code, err) == (0, "")
    runs, differs = out.split("\n\n")
    head, first, second = (line.split() for line in runs.splitlines())
    assert head[:6] == ["run", "status", "strategy", "dataset", "seed", "rounds"]
    assert first[:6] == ["a", "finished", "fedx2", "digits", "1", "2"]
    assert first[6:11] == ["0.8000", "0.4000", "0.4000", "0.4000", "0.4000"]
    assert second[:7] == ["b", "finished", "fedx2", "digits", "0", "1", "0.9000"]
    assert first[-1] == "9.0"
    assert [line.split() for line in differs.splitlines()[1:]] == [
        ["run", "learning-rate", "fedx.gamma"],
        ["a", "0.1", "0.9"],
        ["b", "0.5", "0.3"],
    ]


@pytest.mark.parametrize(
    ("clients", "failure", "status"),
    [
        (None, "the model has\ndiverged", "failed"),
        (4, "the model has diverged", "failed"),  # a finished run whose continuation failed
        (None, "stopped early: auc 0.5", "stopped"),
        (None, "", "unfinished"),
    ],
)
def test_a_run_without_a_result(command: Line, tmp_path: Path, clients: int | None, failure: str, status: str) -> None:
    a, b = fake(tmp_path / "a"), fake(tmp_path / "b", auc=(0.5, 0.6), clients=clients, failure=failure)
    code, out, _ = command("compare", a, b)
    assert code == 0
    assert out.splitlines()[2].split()[:7] == ["b", status, "fedx2", "digits", "0", "1", "0.6000"]
    assert (f"b {status}: {' '.join(failure.split())}" in out) == bool(failure)


def test_wrong_input_is_one_line(command: Line, tmp_path: Path) -> None:
    run, unmeasured = fake(tmp_path / "a"), fake(tmp_path / "b", auc=(), clients=None)
    (tmp_path / "file").write_text("in the way")
    for arguments, told in (
        ([run, tmp_path], f"{tmp_path}: got no run (there is no config.toml), allowed: a run directory"),
        ([run, tmp_path / "none"], f"{tmp_path / 'none'}: got no run"),
        ([run, "--metric", "f1"], f"got 'f1', allowed: metrics of these runs: {', '.join(RANKING)}; remove --metric"),
        (
            [unmeasured, "--metric", "auc"],
            "got 'auc', allowed: metrics of these runs: none, since no round was evaluated",
        ),
        ([run, "--out", tmp_path / "file" / "below"], str(tmp_path / "file")),
    ):
        assert states(refusal(command, "compare", *arguments), told)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", b"a = [1,\n"),
        ("config.toml", b"\xff"),
        ("result.json", b"{"),
        ("result.json", b"[]"),
        ("failure.json", b""),
        ("metrics.jsonl", b"{\n"),
        ("metrics.jsonl", b"[]\n"),
        ("metrics.jsonl", b"\xff\n"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(command: Line, tmp_path: Path, name: str, content: bytes) -> None:
    path = fake(tmp_path / "a")
    (path / name).write_bytes(content)
    assert states(refusal(command, "compare", path), f"error: {path}: got an unreadable run (")


@pytest.mark.parametrize("headline", ["outer", "inner"])
def test_metrics_of_a_second_model_are_shown_if_the_log_shows_them(
    command: Line, tmp_path: Path, headline: str
) -> None:
    keys = {"strategy": "local-scgdam", "scgdam.headline": headline, "num-server-rounds": 1}
    run, _ = federate(tmp_path / "a", keys, clients=2)
    words = command("compare", run.path)[1].splitlines()[0].split()
    assert "auc" in words
    assert ("auc_inner" in words) == (headline == "inner")
    assert "auc_inner" in command("compare", run.path, "--json")[1]


def test_csv_and_picture(command: Line, tmp_path: Path) -> None:
    paths = [fake(tmp_path / f"s{seed}", {"seed": seed, "learning-rate": 0.2}) for seed in range(2)]
    paths.append(fake(tmp_path / "other", {"fedx.independent-history": True}))
    code, *_ = command("compare", *paths, "--metric", "loss", "--out", tmp_path / "out")
    assert code == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "compare.csv").read_text())))
    assert [(row["run"], row["seed"], row["learning-rate"]) for row in rows] == [
        ("s0", "0", "0.2"),
        ("s1", "1", "0.2"),
        ("other", "0", "0.1"),
    ]
    assert [row["fedx.independent-history"] for row in rows] == ["false", "false", "true"]
    assert rows[0]["bytes_down"] == "90"
    assert (tmp_path / "out" / "compare.png").read_bytes().startswith(PNG)
    Comparison.of(paths).save(tmp_path / "out", None)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["compare.csv"]


def test_json(command: Line, tmp_path: Path) -> None:
    paths = [fake(tmp_path / "x" / "run"), fake(tmp_path / "y" / "run", {"seed": 1}, clients=None, failure="why")]
    code, out, err = command("compare", *paths, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["differing"] == ["seed"]
    assert [(run["run"], run["status"], run["reason"], run["auc"], run["config"]) for run in found["runs"]] == [
        (str(paths[0]), "finished", "", 0.8, {"seed": 0}),
        (str(paths[1]), "failed", "why", 0.8, {"seed": 1}),
    ]


def test_runs_that_differ_only_in_their_seed_are_one_curve(tmp_path: Path) -> None:
    paths = [
        fake(tmp_path / "a", {"seed": 0, "learning-rate": 0.2}),
        fake(tmp_path / "b", {"seed": 1, "learning-rate": 0.2}),
        fake(tmp_path / "c", {"seed": 2, "learning-rate": 0.2}, clients=None, failure="stopped early: why"),
        fake(tmp_path / "d", {"seed": 0, "learning-rate": 0.4}),
        fake(tmp_path / "e", {"seed": 0, "learning-rate": 0.4}, clients=8),
    ]
    groups = Comparison.of(paths).curves("auc")
    assert {label: len(curves) for label, curves in groups.items()} == {
        "learning-rate=0.2  clients=4": 2,
        "learning-rate=0.2 (stopped)": 1,
        "learning-rate=0.4  clients=4": 1,
        "learning-rate=0.4  clients=8": 1,
    }


def test_a_curve_is_called_by_what_departs_from_its_strategy_or_as_one_says(command: Line, tmp_path: Path) -> None:
    paths = [
        fake(tmp_path / "a", {"strategy": "coda", "seed": 1}),
        fake(tmp_path / "b", {"strategy": "coda", "seed": 2}),
        fake(tmp_path / "c", {"strategy": "fedx1", "fedx.margin": 0.5, "validation-fraction": 0.2}),
    ]
    comparison = Comparison.of(paths)
    first, second = "strategy=coda  validation-fraction=0", "strategy=fedx1  validation-fraction=0.2  fedx.margin=0.5"
    assert [*comparison.curves("auc")] == [first, second]
    assert {"loss", "coda.stage-decay", "fedx.tau"} < {*comparison.differing}
    assert [*Comparison.of(paths, ["one", "other"]).curves("auc")] == ["one", "other"]
    told = f"--name: got 1: one, allowed: 2 different names, for: {first.replace('  ', ' ')}; "
    assert states(refusal(command, "compare", *paths, "--name", "one"), told)


def test_a_picture_says_which_rows_it_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[str] = []
    monkeypatch.setattr("simulations.results.compare.draw", lambda panels, path: said.extend(panels))
    runs = [fake(tmp_path / "a"), fake(tmp_path / "b", {"validation-fraction": 0.2})]
    for paths, metric in ((runs[:1], "auc"), (runs[1:], "loss"), (runs, "auc"), (runs, "objective")):
        Comparison.of(paths).save(tmp_path / "out", metric)
    tested = "AUC on the test set"
    assert said == [tested, "loss on validation rows", f"{tested} or validation rows", "objective"]


def test_mean_and_standard_deviation() -> None:
    points = in_common([{0: 0.5, 1: 0.6, 2: 0.9}, {0: 0.7, 2: 0.5}])
    curve = Curve.of("a", points.items())
    assert (list(curve.x), curve.seeds) == ([0, 2], 2)
    np.testing.assert_allclose(curve.mean, [0.6, 0.7])
    np.testing.assert_allclose(curve.high - curve.mean, [0.02**0.5, 0.08**0.5])
    np.testing.assert_allclose(curve.mean - curve.low, [0.02**0.5, 0.08**0.5])
