"""Warnings about networks with bounded scores: one for each such network, none for networks of unbounded scores."""

import json
from pathlib import Path

import pytest

from apps.config import Scalar
from apps.evaluation.bounded import BoundWatch
from problems.models import MODELS, FlatModel, build_model
from tests.battery.federation import federate
from tests.programs import Line

OWN = """
import torch
from torch import nn

class Logistic(nn.Module):
    def forward(self, x):
        return 1 / (1 + torch.exp(-x))

def net(last, shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], 8), nn.ReLU(), nn.Linear(8, 1), last)

def sigmoid(shape): return net(nn.Sigmoid(), shape)
def squeezed(shape): return nn.Sequential(net(nn.Sigmoid(), shape), nn.Flatten(0))
def written(shape): return net(Logistic(), shape)
def tanh(shape): return net(nn.Tanh(), shape)
def relu(shape): return net(nn.ReLU(), shape)
def clamp(shape): return net(nn.Hardtanh(), shape)
def scaled(shape): return net(nn.LeakyReLU(), shape)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "bounded_test_models.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return "bounded_test_models"


def warnings_of(model: str, shape: tuple[int, ...], rounds: int = 3) -> list[str]:
    """Return the warnings of rounds whose scores lie in [0.4, 0.6]."""
    watch = BoundWatch(FlatModel(build_model(model, shape, seed=0)), shape)
    return [text for text in (watch.take(0.4, 0.6, 100) for _ in range(rounds)) if text]


@pytest.mark.parametrize("name", ["sigmoid", "squeezed", "written", "tanh", "relu", "clamp"])
def test_a_bounded_network_is_named_once(own: str, name: str) -> None:
    (told,) = warnings_of(f"{own}:{name}", (5,))
    assert "its scores lie between 0.4 and 0.6 on all 100 evaluated rows" in told
    assert ("sigmoid" if name in ("sigmoid", "squeezed", "written") else name.replace("clamp", "hardtanh")) in told


@pytest.mark.parametrize("name", [name for name in MODELS if name != "densenet121"])
def test_bundled_networks_are_not_named(name: str) -> None:
    assert not warnings_of(name, (1, 28, 28))


def test_unbounded_networks_of_users_are_not_named(own: str) -> None:
    assert not warnings_of(f"{own}:scaled", (5,))


def test_few_rows_and_one_round_are_not_enough(own: str) -> None:
    watch = BoundWatch(FlatModel(build_model(f"{own}:written", (5,), seed=0)), (5,))
    assert not any([watch.take(0.4, 0.6, 19), watch.take(0.4, 0.6, 100), watch.take(-0.1, 0.6, 100)])
    assert not any([watch.take(0.5, 0.5, 100), watch.take(0.4, 0.6, 100)])
    assert watch.take(0.4, 0.6, 100)


@pytest.mark.parametrize("dataset", ["digits", "breast-cancer"])
@pytest.mark.parametrize("strategy", ["local-sgd", "fedx2", "coda"])
def test_no_warning_on_bundled_data(tmp_path: Path, dataset: str, strategy: str) -> None:
    keys = {"dataset": dataset, "strategy": strategy, "num-server-rounds": 3, "model": "auto"}
    assert "warnings" not in federate(tmp_path / "run", keys, 2)[0].result


@pytest.mark.parametrize(("strategy", "score"), [("fedx2", "auto"), ("coda", "sigmoid"), ("fedx1", "tanh")])
def test_scores_at_a_bound_are_named(
    tmp_path: Path, strategy: str, score: str, caplog: pytest.LogCaptureFixture
) -> None:
    keys: dict[str, Scalar] = {"dataset": "breast-cancer", "strategy": strategy, "score": score, "learning-rate": 1e4}
    federate(tmp_path / "run", keys | {"num-server-rounds": 2}, 2)
    assert caplog.text.count("nearly all scores are at a bound of the loss's score") == 1


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("dataset='breast-cancer' model='{own}:sigmoid'", "the model ends in a sigmoid"),
        ("dataset='digits' model='mlp' learning-rate=1e6", "on the evaluated rows, after"),
    ],
)
def test_quiet_runs_print_the_warning(command: Line, tmp_path: Path, own: str, keys: str, told: str) -> None:
    config = f"strategy='local-sgd' num-server-rounds=2 {keys.format(own=own)}"
    code, out, err = command("run", "--clients", 2, "--quiet", "--out", tmp_path / "a", "-c", config)
    assert (code, out) == (0, "")
    assert err.count(told) == 1
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert err.splitlines() == [f"warning: {text}; see {tmp_path / 'a' / 'result.json'}" for text in result["warnings"]]
