"""Tests that docs/benchmark.md matches its committed rows."""

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from simulations.python.runs import run
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
    verdicts = [[script.verdict_of(gap) for name, gap in task.gaps.items() if name in above] for task in tasks]
    gains = [own.count(script.AHEAD) for own in verdicts]
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
            if method != script.BASE and values:
                tests[task.name, method] = stats.ttest_rel(values, sides[script.BASE])
    q = stats.false_discovery_control([test.pvalue for test in tests.values()])
    wanted = [
        script.NOISE if value >= 0.05 else script.AHEAD if test.statistic > 0 else script.BEHIND
        for value, test in zip(q, tests.values(), strict=True)
    ]
    found = {(task.name, method): script.verdict_of(gap) for task in tasks for method, gap in task.gaps.items()}
    assert found == dict(zip(tests, wanted, strict=True))
    assert f"The {len(found)} differences are judged together" in script.PAGE.read_text("utf-8")


def test_a_reproductions_rows_are_taken(script: Any, tmp_path: Path) -> None:
    """A method with missing seeds has no verdict, and a method without runs no row."""
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
    _, told, _, _, first, second = task.section()
    assert "clients = 16" in told
    assert "(figures/benchmark/offset-sites.csv): torch 2.5, " in told
    mean, precision = "0.5200 +- 0.0158", "0.2000 +- 0.1581"  # the values 0.50 ... 0.54 and 0.0 ... 0.4
    assert first == f"| Local SGD | 0.3 | {mean} |  |  |  |  |  |  | {mean} | {precision} |"
    assert second.startswith("| LocalSGDAM | 1 | 0.5150 +- 0.0129 |  |  |  |  |  | 4 of 10 seeds finished |")
    columns, _, first, *_ = rare.section()[2:]
    assert columns.startswith("| method | step | average precision | to Local SGD |")
    assert first == f"| Local SGD | 0.3 | {precision} |  |  |  |  |  |  | {mean} | {mean} |"
    assert rare.ends("Local SGD")[4] == 0.4
    script.draw([rare, task], tmp_path / "both.svg")
    (tmp_path / "runs.csv").write_text(
        csv_text([{**row, "auc": 0.9, "new": 1} for row in rows if row["method"] == "LocalSGDAM"])
    )
    script.take(tmp_path / "runs.csv", tmp_path)  # the rows of one cell are replaced, the others stay
    both = [row for row in script.read(tmp_path / "offset-sites.csv") if row["seed"] == "0"]
    assert [(row["method"], row["auc"]) for row in both] == [("Local SGD", "0.5"), ("LocalSGDAM", "0.9")]
    assert "average precision or AUC minus that of Local SGD" in (tmp_path / "both.svg").read_text()


def test_a_row_has_an_interval_over_test_rows(script: Any, tmp_path: Path) -> None:
    """The interval's middle is the AUC minus Local SGD's; a row without both run directories has none."""
    config = {"dataset": "breast-cancer", "model": "linear", "num-server-rounds": 1, "local-steps": 2}
    auc = {}
    for name, steps in (("Local SGD", 0.1), ("FedProx", 0.001)):
        folder = tmp_path / f"{name.lower().replace(' ', '-')}_w8a_task-w8a_seed-0"
        own = {"strategy": "local-sgd", "learning-rate": steps, "pictures": False}
        auc[name] = run({**config, **own}, folder, clients=2, quiet=True).metrics["auc"]
    rows = [{"method": name, "task": "w8a", "seed": "0", "clients": "2"} for name in (*auc, "SCAFFOLD")]
    base, other, missing = script.add_intervals(rows, tmp_path, script.EXPERIMENT, "Local SGD")
    low, high = (float(other[key]) for key in (script.ROWS_LOW, script.ROWS_HIGH))
    assert low < high
    assert (low + high) / 2 == pytest.approx(auc["FedProx"] - auc["Local SGD"], abs=1e-9)
    assert base[script.ROWS_LOW] == missing[script.ROWS_LOW] == ""


def test_controls_are_judged_by_the_same_rule(script: Any, tmp_path: Path) -> None:
    """The table is written from the committed rows; the rule is computed again with SciPy alone."""
    controls = importlib.import_module("control_tables")
    ends = controls.read_ends([controls.ROWS, *script.FOLDER.iterdir()])
    gaps = controls.compare(ends)
    assert controls.BEGIN + controls.write(gaps) + script.END in script.PAGE.read_text("utf-8")
    tests = {}
    for task, control in gaps:
        ours, theirs = ends[task, control], ends[task, controls.PAIRS[control]]
        tests[task, control] = stats.ttest_rel([*ours.values()], [theirs[seed] for seed in ours])
    # p is nan if all seeds have the same result with the method and its control
    q = stats.false_discovery_control([np.nan_to_num(test.pvalue, nan=1.0) for test in tests.values()])
    signs = [0 if value >= 0.05 else np.sign(test.statistic) for value, test in zip(q, tests.values(), strict=True)]
    assert [gap.sign for gap in gaps.values()] == signs
    controls.take(controls.ROWS, tmp_path / "again.csv")
    assert controls.read_ends([tmp_path / "again.csv"]) == controls.read_ends([controls.ROWS])
