"""Tests that docs/benchmark.md matches its committed rows."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from simulations.results.compare import csv_text
from tests.docs.markdown import PROJECT


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    return importlib.import_module("which_strategy")


def test_page_and_picture_are_those_of_the_rows(script: Any) -> None:
    tasks = script.read_tasks(script.FOLDER)
    assert len(tasks) == len([*script.FOLDER.iterdir()]) > 0
    assert script.PAGE.read_text("utf-8").partition(script.BEGIN)[2] == script.write(tasks) + script.END
    gaps = [gap for task in tasks for gap in task.gaps.values()]
    picture = script.PICTURE.read_text("utf-8")
    told = [script.shorten(gap) for gap in gaps if script.verdict_of(gap) != script.NOISE]
    assert sorted(re.findall(r">([+-]\.\d{3})<", picture)) == sorted(told)


def test_references_stand_below_the_line_and_tasks_with_gains_on_the_left(script: Any) -> None:
    tasks, above, below = script.order(script.read_tasks(script.FOLDER))
    assert sorted([*above, *below, script.BASE]) == sorted(script.METHODS)
    assert {"FedX1", "CODASCA"} <= {*above}
    assert {"Centralized", "SCAFFOLD", "Local Pair"} <= {*below}
    gains = [sum(script.verdict_of(task.gaps[name]) == script.AHEAD for name in above) for task in tasks]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > gains[-1]


def test_verdicts_are_those_of_scipy(script: Any) -> None:
    """The rule is computed again from the committed rows with SciPy alone."""
    tasks = script.read_tasks(script.FOLDER)
    tests = {}
    for task in tasks:
        metric = task.metrics[0]
        sides = {method: [] for method in script.METHODS}
        for row in sorted(task.rows, key=lambda row: int(row["seed"])):
            sides[row["method"]].append(float(row[metric]))
        for method, values in sides.items():
            if method != script.BASE:
                tests[task.name, method] = stats.ttest_rel(values, sides[script.BASE])
    q = stats.false_discovery_control([test.pvalue for test in tests.values()])
    wanted = [
        script.NOISE if value >= 0.05 else script.AHEAD if test.statistic > 0 else script.BEHIND
        for value, test in zip(q, tests.values(), strict=True)
    ]
    found = {(task.name, method): script.verdict_of(gap) for task in tasks for method, gap in task.gaps.items()}
    assert found == dict(zip(tests, wanted, strict=True))
    assert len(found) == 156


def test_a_reproductions_rows_are_taken(script: Any, tmp_path: Path) -> None:
    """A method with missing seeds has no verdict, and a method without runs no mean."""
    rows = [
        {"task": task, "method": method, "seed": seed, "learning-rate": rate, "sgdam.gamma-x": gamma}
        | {
            "clients": 16,
            **dict.fromkeys(script.METRICS, 0.5 + seed / 100),
            "average_precision": seed / 10,
            "seconds": 1.5,
            "torch": "2.5",
            "loss_inner": "",
        }
        for task in ("w8a", "offset-sites")
        for method, rate, gamma, seeds in (("Local SGD", 0.3, "", 5), ("LocalSGDAM", "", 3.33, 4))
        for seed in range(seeds)
    ]
    (tmp_path / "runs.csv").write_text(csv_text(rows))
    script.take(tmp_path / "runs.csv", tmp_path)
    rare, task = script.read_tasks(tmp_path)
    _, told, _, _, first, second, third, *_ = task.section()
    assert "clients = 16" in told
    assert "(figures/benchmark/offset-sites.csv): torch 2.5, " in told
    mean, precision = "0.5200 +- 0.0158", "0.2000 +- 0.1581"  # the values 0.50 ... 0.54 and 0.0 ... 0.4
    assert first == f"| Local SGD | 0.3 | {mean} |  |  |  |  |  | {mean} | {precision} |"
    assert second.startswith("| LocalSGDAM | 1 | 0.5150 +- 0.0129 |  |  |  |  | 4 of 5 seeds finished |")
    assert "| - | - |  |  |  |  | 0 of 5 seeds finished | - | - |" in third
    columns, _, first, *_ = rare.section()[2:]
    assert columns.startswith("| method | step | average precision | to Local SGD |")
    assert first == f"| Local SGD | 0.3 | {precision} |  |  |  |  |  | {mean} | {mean} |"
    assert rare.ends("Local SGD")[4] == 0.4
    script.draw([rare, task], tmp_path / "both.svg")
    (tmp_path / "runs.csv").write_text(
        csv_text([{**row, "auc": 0.9, "new": 1} for row in rows if row["method"] == "LocalSGDAM"])
    )
    script.take(tmp_path / "runs.csv", tmp_path)  # the rows of one cell are replaced, the others stay
    both = [row for row in script.read(tmp_path / "offset-sites.csv") if row["seed"] == "0"]
    assert [(row["method"], row["auc"]) for row in both] == [("Local SGD", "0.5"), ("LocalSGDAM", "0.9")]
    assert "average precision or AUC minus that of Local SGD" in (tmp_path / "both.svg").read_text()
