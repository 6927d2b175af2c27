"""A few rounds of the soak: sites are killed and come back, and no round is lost."""

import pytest

from tests.programs import PROJECT, ran

pytestmark = pytest.mark.faults


def test_a_smoke_run_prints_its_table() -> None:
    lines = ran(PROJECT / "benchmarks" / "soak.py", "--smoke", "--no-check", seconds=900).splitlines()
    (row,) = [line for line in lines if line.startswith("6 rounds ")]
    kills, restarts, dropped, seconds, first, most, last = map(float, row.split()[2:])
    assert kills == restarts >= 1
    assert 1 <= dropped <= 6
    assert seconds > 0
    assert most >= max(first, last) > 100
