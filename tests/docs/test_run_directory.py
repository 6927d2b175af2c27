"""Tests that docs/run-directory.md lists exactly the files and columns of a run."""

import tomllib
from pathlib import Path

import pytest

from apps.client_app import app as client_app
from apps.server_app import app as server_app
from simulations.engines.in_process import run_in_process
from tests.battery.federation import Run
from tests.docs.markdown import PROJECT, codes, rows, section

PAGE = PROJECT / "docs" / "run-directory.md"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run of two rounds and two clients, without an evaluation in the first round."""
    base = tmp_path_factory.mktemp("runs")
    config = {"num-server-rounds": 2, "local-steps": 2, "evaluate-every": 2, "checkpoint-every": 1, "model": "linear"}
    run_in_process(server_app, client_app, 2, {**config, "output-dir": str(base), "run-name": "a"})
    return Run(base / "a")


def documented(title: str) -> list[str]:
    return [codes(row[0])[0] for row in rows(section(PAGE, title))]


def evaluation() -> list[str]:
    """Return the names in the second table of the section."""
    return [codes(row[0])[0] for row in rows(section(PAGE, "metrics.jsonl").partition("In the lines of evaluated")[2])]


def test_the_files(run: Run) -> None:
    left = {entry.name + "/" * entry.is_dir() for entry in run.path.iterdir()}
    of_others = {"columns.json", "model_best.safetensors", "failure.json", "model_inner.safetensors", "report.html"}
    of_others |= {"tracking.json", "baselines.json", "model.onnx", "model.md", "card.md", "roc.png", "reliability.png"}
    of_others |= {"sites.png", "scorecard.csv", "scorecard.html", "decision.csv", "recalibration.csv", "subgroups.csv"}
    of_others |= {"coefficients.csv", "survival.json", "weights.json"}
    assert left | of_others == set(documented("The run directory")[:30])


def test_a_second_model_and_its_metrics(tmp_path: Path) -> None:
    config = {"strategy": "local-scgdam", "num-server-rounds": 1, "local-steps": 1, "model": "linear"}
    run_in_process(server_app, client_app, 2, {**config, "output-dir": str(tmp_path), "run-name": "a"})
    assert (tmp_path / "a" / "model_inner.safetensors").exists()
    last = Run(tmp_path / "a").lines[-1]
    assert {name for name in last if name.endswith("_inner")} == {f"{name}_inner" for name in evaluation()}


def test_the_keys_of_a_line(run: Run) -> None:
    every = [key for key in documented("metrics.jsonl") if key not in evaluation()]
    first, unevaluated, last = run.lines
    assert sorted(unevaluated) == sorted(every)
    assert sorted(first) == sorted(last) == sorted([*every, *evaluation()])


def test_the_keys_of_the_result(run: Run) -> None:
    result = run.result
    assert list(result) == documented("result.json")
    assert sorted(result["metrics"]) == sorted(result["best"]) == sorted(evaluation())
    (versions,) = [row for row in rows(section(PAGE, "result.json")) if row[0] == "`versions`"]
    assert list(result["versions"]) == codes(versions[2])
    assert result["config"] == tomllib.loads((run.path / "config.toml").read_text("utf-8"))


def test_the_keys_of_what_a_run_chooses_and_of_its_figures(tmp_path: Path) -> None:
    config = {"strategy": "local-sgd", "model": "linear", "num-server-rounds": 3, "validation-fraction": 0.2}
    config |= {"dataset": "synthetic-sparse-logistic", "synthetic.alpha": 0, "synthetic.beta": 0, "learning-rate": 1e-9}
    config |= {"select-by": "loss", "patience": 1, "threshold-at": "specificity=0.9", "site-metrics": True}
    config |= {"calibration": "platt"}
    run_in_process(server_app, client_app, 2, {**config, "output-dir": str(tmp_path), "run-name": "a"})
    result, figures = Run(tmp_path / "a").result, section(PAGE, "Figures of sites and a threshold")
    top, entry = (text.split("The figures describe")[0] for text in (figures, figures.partition("An entry of")[2]))
    told = [*documented("A selected model"), *(codes(row[0])[0] for row in rows(top))]
    others = [*documented("result.json"), "stopped", "left_out"]
    assert {*result, "stopped", "left_out"} == {*told, *others}
    keys = [name for row in rows(entry) for name in codes(row[0])]
    assert keys[0] == "partition"
    assert [*result["sites"][0], "by_score"] == keys
    assert list(result["all"]) == keys[2:]
    listed = set(codes(next(row for row in rows(entry) if row[0] == "`by_score`")[2]))
    assert set(result["all"]["by_score"]) <= listed
    told = {name for row in rows(figures) for name in codes(row[-1])}
    assert {*result["all"]["reliability"][0], *result["all"]["confusion"], *result["threshold"]} <= told
    chosen = {name for row in rows(section(PAGE, "A selected model")) for name in codes(row[-1])}
    assert {*result["selected"], "patience"} <= chosen
