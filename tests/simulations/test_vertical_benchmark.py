"""benchmarks/vertical.py: its arithmetic, and that its cases run; its limits are left to a quiet machine."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from clients.vertical.plan import Outcome
from problems.vertical.solvers import largest_step

PROJECT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def vertical(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    return importlib.import_module("vertical")


@pytest.fixture
def problem(vertical: ModuleType) -> Any:
    return vertical.Problem(*vertical.synthetic(400), smoke=True)


def test_the_step_fits_the_delay(vertical: ModuleType, problem: Any) -> None:
    assert problem.plan(8, 3, 4).step == pytest.approx(0.9 * largest_step(problem.smoothness, 12))
    assert problem.plan(8, 3, 2, delay=4).step == pytest.approx(0.9 * largest_step(problem.smoothness, 4))
    found = vertical.injected(3, 0.01, 0.005, 1.4)  # only the last party is slower
    assert [one.compute for one in found] == pytest.approx([0.005, 0.005, 0.007])
    assert all(one.delays.one_way == 0.01 for one in found)


def test_the_time_is_interpolated_in_the_segment_that_crosses(
    vertical: ModuleType, problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem.target = 1e-2
    gaps = iter([0.2, 1e-1, 1e-3, 1e-9])  # the third crosses, half-way in logarithms
    asked: list[list[int]] = []

    def run(holdings: Any, plans: Any, states: Any, injections: Any) -> list[list[Outcome]]:
        asked.append([plan.first_epoch for plan in plans])
        counted = [{"seconds_training": seconds, "updates": 10.0, "mean_staleness": seconds} for seconds in (2.0, 4.0)]
        objectives = [problem.optimum + next(gaps) for _ in plans]
        return [[Outcome(np.zeros(1), metrics={"objective": f}, counters=one) for one in counted] for f in objectives]

    monkeypatch.setattr(vertical, "run_in_processes", run)
    monkeypatch.setattr(vertical, "epochs_by_the_centralised_run", lambda *_: 2)
    reached = vertical.seconds_to_target(problem, problem.plan(8, 3, 2))
    assert asked == [[0, 1], [2, 3]]
    assert reached == pytest.approx((4.0 + 4.0 + 2.0, 2.5, 25.0, 4.0))
    assert reached.pace == pytest.approx(2.5)


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.usefixtures("flower_engine")
def test_each_kind_of_case_runs_and_prints_its_row(vertical: ModuleType) -> None:
    cases = ["straggler-6", "parties", "cpu", "seconds", "segment"]  # the others are the first with other numbers
    assert set(cases) < set(vertical.CASES)
    done = subprocess.run(
        [sys.executable, str(PROJECT / "benchmarks" / "vertical.py"), *cases, "--smoke", "--no-check"],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "data: synthetic, 1,500 x 90"
    for name in cases:
        (row,) = [line for line in lines if re.match(rf"{name}  ", line)]
        assert float(row.split()[1]) > 0
    assert len([line for line in lines if ": step " in line or " updates/s" in line]) >= 5
