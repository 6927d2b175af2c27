"""FedX2 in a Flower app that is not ours, in this process and by `flwr run`."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score

from simulations.engines.in_process import run_in_process
from tests.battery.engines import flower_home
from tests.docs.markdown import PROJECT

APP = PROJECT / "examples" / "plain-flower-app"
SITES = 4
SECONDS = 600.0


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(APP)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "fedx_app"]:
        del sys.modules[name]


@pytest.fixture
def run_config() -> dict[str, Any]:
    config: dict[str, Any] = tomllib.loads((APP / "pyproject.toml").read_text("utf-8"))["tool"]["flwr"]["app"]["config"]
    return config


def auc_of(model: Path) -> float:
    """Of a saved model, loaded by the app's own network and nothing of ours."""
    from fedx_app.task import load, new_net

    net = new_net()
    before = [value.clone() for value in net.parameters()]
    net.load_state_dict(torch.load(model))
    assert not all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    images, labels = load("test")
    with torch.inference_mode():
        return float(roc_auc_score(labels, net(torch.tensor(images))))


@pytest.mark.usefixtures("importable")
def test_it_learns_in_this_process(run_config: dict[str, Any], tmp_path: Path) -> None:
    from fedx_app.client_app import app as client_app
    from fedx_app.server_app import app as server_app

    grid = run_in_process(server_app, client_app, SITES, {**run_config, "save-to": str(tmp_path / "model.pt")})
    assert auc_of(tmp_path / "model.pt") > 0.9
    kept = [set(context.state) for context in grid._contexts.values()]
    assert kept == [{"inner-estimates"}] * SITES  # every client has its u


@pytest.mark.flower
@pytest.mark.usefixtures("importable")
def test_it_learns_by_flwr_run(run_config: dict[str, Any], tmp_path: Path) -> None:
    saved = tmp_path / "model.pt"
    with flower_home(tmp_path / "flower-home"):
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("flwr")),
                *("run", str(APP), "--stream"),
                *("--federation-config", f"num-supernodes={SITES} client-resources-num-cpus=1"),
                *("--run-config", f'num-server-rounds=3 save-to="{saved}"'),
            ],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    assert saved.exists(), done.stdout + done.stderr  # flwr run ends with 0 even where the run failed
    expected = {**run_config, "num-server-rounds": 3, "save-to": str(tmp_path / "here.pt")}
    from fedx_app.client_app import app as client_app
    from fedx_app.server_app import app as server_app

    run_in_process(server_app, client_app, SITES, expected)
    assert auc_of(saved) == auc_of(tmp_path / "here.pt")
