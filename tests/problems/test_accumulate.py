"""Batches in parts: the whole batch's scores and gradients, one pass of batch norm and dropout, and the refusals."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from apps.config import Scalar, parse_run_config
from apps.server_app import RunFailedError
from apps.sites.resources import new_model
from problems.models import FlatModel, ModelError
from tests.battery.federation import federate, model_of
from tests.refusals import refuses

NETWORK = "tests.problems.test_accumulate:make_network"


def make_network(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 8), nn.Tanh(), nn.Linear(8, 1))


def make_model(norm: nn.Module, parts: int, precision: torch.dtype | None = None, dropout: float = 0.5) -> FlatModel:
    """Return a network with a normalisation and dropout, whose weights are always the same."""
    generator = torch.Generator().manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.Dropout(dropout), nn.Flatten(), nn.Linear(36, 1), nn.Flatten(0))
    for parameter in module.parameters():
        nn.init.normal_(parameter, generator=generator)
    dtype = torch.float64 if precision is None else torch.float32
    return FlatModel(module, dtype=dtype, precision=precision, parts=parts)


def draw(rows: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Return images, and slopes of their scores."""
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 1, 5, 5, generator=generator, dtype=dtype), torch.linspace(-1, 2, rows, dtype=dtype)


@given(rows=st.integers(0, 9), parts=st.integers(2, 12))
@settings(max_examples=40, deadline=None)
def test_parts_give_the_whole_batch_s_gradient(rows: int, parts: int) -> None:
    features, slopes = draw(rows)
    found = []
    for model in (make_model(nn.GroupNorm(2, 4), number, dropout=0.0) for number in (1, parts)):
        scores, pull = model.forward(model.parameters, features)
        found += [scores, pull(slopes)]
    torch.testing.assert_close(found[2:], found[:2], rtol=1e-12, atol=1e-12)


def test_batch_norm_and_dropout_see_each_part_once() -> None:
    features, slopes = draw(9)
    whole, parted = (make_model(nn.BatchNorm2d(4), parts) for parts in (1, 4))
    torch.manual_seed(1)
    gradient, scores = torch.zeros_like(whole.gradient), []
    for chunk, weights in zip(features.tensor_split(4), slopes.tensor_split(4), strict=True):
        values, pull = whole.forward(whole.parameters, chunk)
        scores.append(values)
        gradient += pull(weights)
    torch.manual_seed(1)
    values, pull = parted.forward(parted.parameters, features)
    parted.predict(features)  # eval mode
    parted.forward(parted.parameters + 1, features)  # other weights, and random numbers
    parted.buffers.copy_(whole.buffers)
    torch.testing.assert_close((values, pull(slopes)), (torch.cat(scores), gradient), rtol=1e-12, atol=1e-12)
    assert torch.equal(parted.buffers, whole.buffers)


def test_parts_in_float16_may_overflow_too() -> None:
    features, slopes = draw(9, torch.float32)
    found = []
    for precision in (None, torch.float16):
        model = make_model(nn.GroupNorm(2, 4), 3, precision)
        torch.manual_seed(1)
        _, pull = model.forward(model.parameters, features.to(model.dtype))
        found.append(pull(slopes.to(model.dtype)).float())
    assert model.loss_scale is not None
    assert model.loss_scale.factor < 2.0**16
    torch.testing.assert_close(found[1], found[0], rtol=0.02, atol=0.1)


@pytest.mark.parametrize("strategy", ["local-sgd", "fedx2", "coda"])
def test_every_loss_sees_the_whole_batch(strategy: str, tmp_path: Path) -> None:
    config: dict[str, Scalar] = {"dataset": "digits", "model": NETWORK, "dtype": "float64", "strategy": strategy}
    ends = []
    for parts in (1, 3):
        _, tap = federate(tmp_path / str(parts), {**config, "accumulate": parts}, clients=2)
        ends.append(model_of(tap.exchanges[-1].reply)[0])
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("keys", [{"model": "mlp"}, {"strategy": "local-scgdam"}, {"privacy.epsilon": 1.0}])
def test_some_models_have_no_parts(keys: dict[str, Scalar], tmp_path: Path) -> None:
    config: dict[str, Scalar] = {
        "dataset": "digits",
        "model": NETWORK,
        "strategy": "local-sgd",
        "accumulate": 2,
        **keys,
    }
    with refuses(ModelError, "accumulate: got 2, allowed: 1 with linear and mlp"):
        new_model(parse_run_config(config), (64,))
    with refuses(RunFailedError, "accumulate: .*all coefficients are computed"):
        federate(tmp_path / "newton", {"dataset": "breast-cancer", "strategy": "newton", "accumulate": 2}, clients=2)
