"""All engines compute the same run and report errors."""

import sys
from pathlib import Path

import numpy as np
import pytest

from simulations.__main__ import main
from tests.battery.engines import Engine
from tests.battery.federation import SAMPLING, federate, log_to_stderr, network_of, save_npz
from tests.refusals import states

MOVING = ("engine", "wall_seconds", "config")


def test_the_same_config_gives_the_same_bytes(strategy: str, engine: Engine, tmp_path: Path) -> None:
    config = {
        "strategy": strategy,
        "model": network_of(strategy),
        "checkpoint-every": 2,
        "fraction-train": 0.67 if strategy in SAMPLING else 1.0,
    }
    expected, _ = federate(tmp_path / "first" / "run", config, clients=3)
    run = engine.run(tmp_path / "a-longer-path" / "run", config, 3)
    assert run.untimed == expected.untimed
    assert run.model_bytes == expected.model_bytes
    left, right = run.result, expected.result
    assert {k: v for k, v in left.items() if k not in MOVING} == {k: v for k, v in right.items() if k not in MOVING}


@pytest.mark.gate
@pytest.mark.parametrize("secure", [False, True])
def test_a_description_is_the_same_on_every_engine(secure: bool, engine: Engine, tmp_path: Path) -> None:
    config = {"strategy": "describe", "dataset": "breast-cancer", "privacy.secure-sum": secure}
    federate(tmp_path / "first" / "run", config, clients=3, threads=2)
    engine.run(tmp_path / "second" / "run", config, 3)
    tables = [(tmp_path / name / "run" / "describe.json").read_bytes() for name in ("first", "second")]
    assert tables[0] == tables[1]


def test_a_network_with_batch_norm_gives_the_same_bytes(engine: Engine, tmp_path: Path) -> None:
    """Two networks have separate statistics, at w and at h, and the Hessian uses both passes."""
    labels = np.arange(48) % 4 == 0
    images = np.random.default_rng(0).normal(size=(48, 1, 8, 8)) + labels[:, None, None, None]
    config = {
        "strategy": "local-scgdam",
        "model": "table3-cnn",
        "score": "sigmoid",
        "local-steps": 3,
        **save_npz(tmp_path / "data.npz", images, labels.astype(int)),
    }
    expected, _ = federate(tmp_path / "first" / "run", config, clients=2, threads=2)
    run = engine.run(tmp_path / "second" / "run", config, 2)
    assert run.untimed == expected.untimed
    assert run.model_bytes == expected.model_bytes
    assert any("running_mean" in name for name in run.model)
    assert run.lines[-1]["loss"] != run.lines[0]["loss"]


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
    assert states(last, f"data-dir: got '{data}', which does not exist")
    assert not (tmp_path / "run" / "result.json").exists()
