"""docs/run-directory.md names exactly what a run leaves."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from apps.client_app import app as client_app
from apps.server_app import app as server_app
from simulations.engines.in_process import run_in_process
from tests.docs.markdown import PROJECT, codes, rows, section

PAGE = PROJECT / "docs" / "run-directory.md"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds, two clients, the first round not evaluated."""
    base = tmp_path_factory.mktemp("runs")
    config = {"num-server-rounds": 2, "local-steps": 2, "evaluate-every": 2, "checkpoint-every": 1, "model": "linear"}
    run_in_process(server_app, client_app, 2, {**config, "output-dir": str(base), "run-name": "a"})
    return base / "a"


@pytest.fixture(scope="module")
def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def result(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "result.json").read_text("utf-8"))
    return found


def documented(title: str) -> list[str]:
    return [codes(row[0])[0] for row in rows(section(PAGE, title))]


def evaluation() -> list[str]:
    """The second table of the section."""
    return [codes(row[0])[0] for row in rows(section(PAGE, "metrics.jsonl").partition("In the lines of evaluated")[2])]


def test_the_files(run: Path) -> None:
    left = {entry.name + "/" * entry.is_dir() for entry in run.iterdir()}
    of_others = {"columns.json", "failure.json", "model_inner.safetensors"}
    assert left | of_others == set(documented("The run directory")[:12])


def test_a_second_model_and_its_metrics(tmp_path: Path) -> None:
    config = {"strategy": "local-scgdam", "num-server-rounds": 1, "local-steps": 1, "model": "linear"}
    run_in_process(server_app, client_app, 2, {**config, "output-dir": str(tmp_path), "run-name": "a"})
    assert (tmp_path / "a" / "model_inner.safetensors").exists()
    _, last = (json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text("utf-8").splitlines())
    assert {name for name in last if name.endswith("_inner")} == {f"{name}_inner" for name in evaluation()}


def test_the_keys_of_a_line(lines: list[dict[str, Any]]) -> None:
    every = [key for key in documented("metrics.jsonl") if key not in evaluation()]
    first, unevaluated, last = lines
    assert sorted(unevaluated) == sorted(every)
    assert sorted(first) == sorted(last) == sorted([*every, *evaluation()])


def test_the_keys_of_the_result(run: Path, result: dict[str, Any]) -> None:
    assert list(result) == documented("result.json")
    assert sorted(result["metrics"]) == sorted(result["best"]) == sorted(evaluation())
    (versions,) = [row for row in rows(section(PAGE, "result.json")) if row[0] == "`versions`"]
    assert list(result["versions"]) == codes(versions[2])
    assert result["config"] == tomllib.loads((run / "config.toml").read_text("utf-8"))
