"""Training in 16 bits: gradients near float32's, loss scaling, weights and messages in float32, and the refusals."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from apps.config import ConfigError, Scalar, parse_run_config
from apps.server_app import RunFailedError
from apps.sites.resources import new_model
from problems.models import FlatModel, ModelError, build_model
from problems.models.loss_scale import LossScale
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


def overflow_above(limit: float) -> Callable[[float], torch.Tensor]:
    """Return a backward pass whose gradient (1/3, -2) overflows if the loss's factor is above a limit."""
    return lambda factor: torch.tensor([1 / 3, -2.0]) * (factor if factor <= limit else torch.inf)


def test_an_overflowing_gradient_is_computed_again_with_half_the_factor() -> None:
    scale = LossScale()
    exact = torch.tensor([1 / 3, -2.0])
    for limit, factor in ((2.0**16, 2.0**16), (700.0, 512.0), (2.0**16, 512.0), (1.5, 1.0)):
        assert torch.equal(scale.unscale(overflow_above(limit)), exact)
        assert scale.factor == factor
    for _ in range(1999):
        scale.unscale(overflow_above(torch.inf))
    assert scale.factor == 2.0
    assert not scale.unscale(overflow_above(0.5)).isfinite().any()
    assert scale.factor == 1.0
    scale.restart()
    assert scale.factor == 2.0**16


@pytest.mark.parametrize(("slope", "factor"), [(1e-6, 2.0**16), (1e4, 4.0)])
def test_float16_gradients_neither_vanish_nor_overflow(slope: float, factor: float) -> None:
    features = torch.randn(16, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    full, half = (
        FlatModel(build_model("table3-cnn", (1, 28, 28), seed=0), precision=precision)
        for precision in (None, torch.float16)
    )
    exact, near = (
        model.forward(model.parameters, features)[1](slope * torch.linspace(-1, 1, 16)) for model in (full, half)
    )
    assert float((near - exact).norm() / exact.norm()) < 0.02  # 11 bits; the slopes add up to 0
    assert half.loss_scale is not None
    assert half.loss_scale.factor == factor
    half.load(half.arrays())
    assert half.loss_scale.factor == 2.0**16


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


def test_float16_needs_a_gpu_and_first_derivatives(tmp_path: Path) -> None:
    config: dict[str, Scalar] = {"dataset": "digits", "model": NETWORK, "precision": "fp16", "device": "cpu"}
    with refuses(RunFailedError, "precision: .*got 'fp16', allowed: 'full' or 'bf16' on a CPU"):
        federate(tmp_path / "run", {**config, "strategy": "local-sgd"}, clients=2)
    with refuses(ModelError, "precision: .*'bf16' with loss 'compositional-auc'"):
        new_model(parse_run_config({**config, "strategy": "local-scgdam"}), (64,))
