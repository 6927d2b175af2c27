"""Every engine computes the same run, and says what went wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from simulations.__main__ import main
from tests.battery.engines import Engine
from tests.battery.federation import SAMPLING, federate, log_to_stderr

MOVING = ("engine", "wall_seconds", "config")


def test_the_same_config_gives_the_same_bytes(strategy: str, engine: Engine, tmp_path: Path) -> None:
    config = {
        "strategy": strategy,
        "model": "mlp",
        "checkpoint-every": 2,
        "fraction-train": 0.67 if strategy in SAMPLING else 1.0,
    }
    expected, _ = federate(tmp_path / "first" / "run", config, clients=3)
    run = engine.run(tmp_path / "a-longer-path" / "run", config, 3)
    assert run.untimed == expected.untimed
    assert run.model_bytes == expected.model_bytes
    left, right = run.result, expected.result
    assert {k: v for k, v in left.items() if k not in MOVING} == {k: v for k, v in right.items() if k not in MOVING}


def test_a_run_that_cannot_start_says_why_in_its_last_line(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "nothing.npz"
    config = f'dataset="npz" data-dir="{data}"'
    out = str(tmp_path / "run")
    monkeypatch.setattr(
        sys, "argv", ["simulations", "run", "--engine", engine.name, "--clients", "2", "--out", out, "-c", config]
    )
    log_to_stderr(monkeypatch)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code not in (0, None)
    last = capfd.readouterr().err.strip().splitlines()[-1]
    assert last.endswith(f"data-dir '{data}' does not exist")
    assert not (tmp_path / "run" / "result.json").exists()
