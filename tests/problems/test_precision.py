"""Training in bfloat16: gradients near float32's, weights and messages in float32, and the refusals."""

from pathlib import Path

import numpy as np
import pytest
import torch

from apps.config import ConfigError, Scalar
from apps.server_app import RunFailedError
from problems.models import FlatModel, build_model
from tests.battery.federation import federate, model_of
from tests.refusals import refuses

BF16: dict[str, Scalar] = {"precision": "bf16"}
NETWORK = "tests.problems.test_precision:make_network"


def test_gradients_are_near_and_weights_in_full() -> None:
    features = torch.randn(16, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    gradients = []
    for precision in (None, torch.bfloat16):
        model = FlatModel(build_model("table3-cnn", (1, 28, 28), seed=0), precision=precision)
        scores, pull = model.forward(model.parameters, features)
        assert scores.dtype == torch.float32
        gradients.append(pull(torch.linspace(-1, 1, 16)).clone())
        assert model.parameters.dtype == gradients[-1].dtype == torch.float32
    exact, near = gradients
    error = float((near - exact).norm() / exact.norm())
    assert 1e-5 < error < 0.2  # 8 bits; the slopes add up to 0
    full = FlatModel(build_model("table3-cnn", (1, 28, 28), seed=0))
    full.load(model.arrays())
    torch.testing.assert_close(model.predict(features), full.predict(features))


@pytest.mark.parametrize("strategy", ["local-sgd", "fedx1", "coda", "local-scgdam"])
def test_runs_send_float32(strategy: str, tmp_path: Path) -> None:
    config: dict[str, Scalar] = {"dataset": "digits", "model": NETWORK}
    config |= {"strategy": strategy, "num-server-rounds": 2, **BF16}
    run, tap = federate(tmp_path / "run", config, clients=2)
    assert {
        model_of(exchange.reply)[0].dtype for exchange in tap.exchanges if exchange.server_round and not exchange.phase
    } == {np.dtype(np.float32)}
    assert np.isfinite(list(run.result["metrics"].values())).all()
    full, _ = federate(tmp_path / "full", {**config, "precision": "full"}, clients=2)
    assert run.model_bytes != full.model_bytes


def make_network(shape: tuple[int, ...]) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(shape[0], 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))


@pytest.mark.parametrize(
    "keys", [{"model": "mlp"}, {"model": "tests.problems.test_precision:make_network", "dtype": "float64"}]
)
def test_it_needs_layers_in_float32(keys: dict[str, Scalar], tmp_path: Path) -> None:
    with refuses(RunFailedError, "precision: .*'full' with linear and mlp"):
        federate(tmp_path / "run", {"dataset": "digits", "strategy": "local-sgd", **BF16, **keys}, clients=2)
    with refuses((ConfigError, RunFailedError), "precision: .*all coefficients are computed"):
        federate(tmp_path / "newton", {"dataset": "breast-cancer", "strategy": "newton", **BF16}, clients=2)
