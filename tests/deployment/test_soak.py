"""A few rounds of the soak: sites are killed and come back, and no round is lost."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.deployment.federation import PROJECT

pytestmark = pytest.mark.faults


def test_a_smoke_run_prints_its_table() -> None:
    done = subprocess.run(
        [sys.executable, str(PROJECT / "benchmarks" / "soak.py"), "--smoke", "--no-check"],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("6 rounds ")]
    kills, restarts, dropped, seconds, first, most, last = map(float, row.split()[2:])
    assert kills == restarts >= 1
    assert 1 <= dropped <= 6
    assert seconds > 0
    assert most >= max(first, last) > 100
