"""Strategies in Flower apps that are not ours, in this process, by `flwr run`, and at deployed sites."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score

from simulations.engines.in_process import InProcessGrid, run_in_process
from tests.battery.engines import flower_home
from tests.deployment.federation import CONNECTION, deployed
from tests.docs.markdown import PROJECT

FEDX, QUICKSTART = PROJECT / "examples" / "plain-flower-app", PROJECT / "examples" / "quickstart-app"
PACKAGES = {FEDX: "fedx_app", QUICKSTART: "quickstart"}
APPS = pytest.mark.parametrize(
    ("app", "keys"),
    [(FEDX, {"strategy": "fedx1"}), (FEDX, {"strategy": "fedx2"}), (QUICKSTART, {})],
    ids=["fedx1", "fedx2", "quickstart"],
)
SITES = 4
SECONDS = 600.0
NUMPY_CLIENT = """\
import torch
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from quickstart.task import load_site, new_net, train


class Site(NumPyClient):
    def __init__(self, context):
        self.settings, self.net, node = context.run_config, new_net(), context.node_config
        self.images, self.labels = load_site(int(node["partition-id"]), int(node["num-partitions"]))

    def fit(self, parameters, config):
        arrays = map(torch.tensor, parameters)
        self.net.load_state_dict(dict(zip(self.net.state_dict(), arrays, strict=True)))
        train(self.net, self.images, self.labels, self.settings["local-epochs"], self.settings["learning-rate"])
        return [value.numpy() for value in self.net.state_dict().values()], len(self.images), {}


app = ClientApp(lambda context: Site(context).to_client())
"""


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for app in PACKAGES:
        monkeypatch.syspath_prepend(app)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES.values()]:
        del sys.modules[name]


def run_here(app: Path, keys: dict[str, Any], saved: Path, sites: int = SITES) -> InProcessGrid:
    config = tomllib.loads((app / "pyproject.toml").read_text("utf-8"))["tool"]["flwr"]["app"]["config"]
    server, client = (import_module(f"{PACKAGES[app]}.{side}_app").app for side in ("server", "client"))
    return run_in_process(server, client, sites, {**config, **keys, "save-to": str(saved)})


def quality_of(app: Path, model: Path) -> float:
    """Return the test AUC or accuracy of a saved model, loaded by the app's own network and nothing of ours."""
    task = import_module(f"{PACKAGES[app]}.task")
    net = task.new_net()
    before = [value.clone() for value in net.parameters()]
    net.load_state_dict(torch.load(model))
    assert not all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    if app == QUICKSTART:
        return float(task.accuracy(net, *task.load("test")))
    images, labels = task.load("test")
    with torch.inference_mode():
        return float(roc_auc_score(labels, net(torch.tensor(images))))


@APPS
def test_they_learn_in_this_process(app: Path, keys: dict[str, Any], tmp_path: Path) -> None:
    grid = run_here(app, keys, tmp_path / "model.pt")
    assert quality_of(app, tmp_path / "model.pt") > 0.9
    kept = [set(context.state) for context in grid._contexts.values()]
    assert kept == [{"inner-estimates"} if "fedx2" in keys.values() else set()] * SITES  # FedX2's clients have their u


@pytest.mark.flower
@APPS
def test_they_learn_by_flwr_run(app: Path, keys: dict[str, Any], tmp_path: Path) -> None:
    saved, short = tmp_path / "model.pt", {**keys, "num-server-rounds": 3}
    pairs = " ".join(f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}" for key, value in short.items())
    with flower_home(tmp_path / "flower-home"):
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("flwr")),
                *("run", str(app), "--stream"),
                *("--federation-config", f"num-supernodes={SITES} client-resources-num-cpus=1"),
                *("--run-config", f'{pairs} save-to="{saved}"'),
            ],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    assert saved.exists(), done.stdout + done.stderr  # flwr run ends with 0 even if the run failed
    run_here(app, short, tmp_path / "here.pt")
    assert_same_models(tmp_path / "here.pt", saved)


def assert_same_models(first: Path, second: Path) -> None:
    here, there = torch.load(first), torch.load(second)
    assert {name: value.dtype for name, value in here.items()} == {name: value.dtype for name, value in there.items()}
    # the random ids of the nodes of plain clients determine the order of a mean
    assert all(torch.allclose(value, there[name], rtol=1e-4, atol=1e-6) for name, value in here.items())


@pytest.mark.deployment
def test_plain_clients_train_at_deployed_sites(tmp_path: Path) -> None:
    """Clients of messages, and the same clients as NumPyClients, find the model of one process."""
    as_numpy, home = tmp_path / "numpy-app", tmp_path / "deployment"
    shutil.copytree(QUICKSTART, as_numpy, ignore=shutil.ignore_patterns("__pycache__"))
    server = as_numpy / "quickstart" / "server_app.py"
    server.write_text(server.read_text("utf-8").replace('clients="message"', 'clients="numpy"'), "utf-8")
    (as_numpy / "quickstart" / "client_app.py").write_text(NUMPY_CLIENT, "utf-8")
    run_here(QUICKSTART, {"num-server-rounds": 2}, tmp_path / "here.pt", sites=2)
    home.mkdir()
    with deployed(home, 2) as running:
        for app in (QUICKSTART, as_numpy):
            saved = tmp_path / f"{app.name}.pt"
            keys = f'num-server-rounds=2 save-to="{saved}"'
            answer = running.flwr("run", str(app), CONNECTION, "--run-config", keys)
            assert answer is not None, running.logs()
            assert running.ended(str(answer["run-id"])) == "finished:completed", running.logs()
            assert_same_models(tmp_path / "here.pt", saved)
