"""benchmarks/vertical.py: its arithmetic, and that its cases run; its limits are left to a quiet machine."""

import importlib
import re
from types import ModuleType

import pytest

from tests.programs import PROJECT, ran


@pytest.fixture
def vertical(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    return importlib.import_module("vertical")


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.usefixtures("flower_engine")
def test_each_kind_of_case_runs_and_prints_its_row(vertical: ModuleType) -> None:
    cases = ["straggler-6", "parties", "cpu", "seconds", "segment"]  # the others are the first with other numbers
    assert set(cases) < set(vertical.CASES)
    script = PROJECT / "benchmarks" / "vertical.py"
    lines = ran(script, *cases, "--smoke", "--no-check", seconds=600).splitlines()
    assert lines[0] == "data: synthetic, 1,500 x 90"
    for name in cases:
        (row,) = [line for line in lines if re.match(rf"{name}  ", line)]
        assert float(row.split()[1]) > 0
    assert len([line for line in lines if ": step " in line or " updates/s" in line]) >= 5
