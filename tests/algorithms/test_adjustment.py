"""Clipped gradients and weight decay, compared with PyTorch in every strategy that has them; refused in the others."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from apps.config import ConfigError, Scalar, parse_run_config
from apps.registry import ALGORITHMS
from clients.base import MethodClient, Site
from clients.scoring import LocalSGDClient, LocalSGDMClient
from methods.sgdm import SGDMSettings
from payloads.settings import Settings, TrainingSettings
from problems.models import FlatModel, build_model
from tests.algorithms.helpers import flattened
from tests.battery.federation import Run, federate, model_of
from tests.reference.minimax import Array
from tests.refusals import refuses

ADJUSTED = [
    name for name, row in ALGORITHMS.items() if issubclass(row.client, MethodClient) and row.client.method.adjusts
]
BOTH: dict[str, Scalar] = {"clip-gradient": 0.05, "weight-decay": 0.3}


def test_these_have_them() -> None:
    pairs, samples = ["fedx1", "fedx2", "local-pair"], ["fedprox", "local-sgd", "local-sgdm", "local-sgdm-rl"]
    assert sorted(ADJUSTED) == sorted([*pairs, *samples, "scaffold", "fgdro-kl", "fgdro-cvar"])


@pytest.mark.parametrize("clip", [0.0, 0.01, 0.2, 1e6])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("momentum", [None, 0.2])
def test_steps_are_those_of_pytorch(clip: float, decay: float, momentum: float | None) -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(40, 5)), (np.arange(40) % 3 == 0).astype(float)
    site = Site.from_arrays(0, features, labels, dtype=torch.float64, device=torch.device("cpu"))
    module = build_model("mlp", (5,), seed=0).double()
    next(module.parameters()).requires_grad_(False)  # frozen parameters do not decay either
    training = TrainingSettings(
        local_steps=6, learning_rate=0.5, batch_size=0, dtype="float64", clip_gradient=clip, weight_decay=decay
    )
    kind, own = (LocalSGDClient, Settings()) if momentum is None else (LocalSGDMClient, SGDMSettings(momentum=momentum))
    model = FlatModel(module, dtype=torch.float64)
    fitted, _, _ = kind(site, model, training, own).fit(model.arrays(), {"server-round": 1})

    plain = build_model("mlp", (5,), seed=0).double()
    next(plain.parameters()).requires_grad_(False)
    kept = 0.0 if momentum is None else 1 - momentum
    trained = [parameter for parameter in plain.parameters() if parameter.requires_grad]
    # PyTorch's first momentum is the first gradient, whatever its dampening.
    optimiser = torch.optim.SGD(trained, lr=0.5, weight_decay=decay, momentum=kept, dampening=kept)
    for _ in range(6):
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(plain(torch.tensor(features)), torch.tensor(labels)).backward()
        if clip:
            nn.utils.clip_grad_norm_(trained, clip)
        optimiser.step()
    expected = np.concatenate([parameter.detach().numpy().ravel() for parameter in trained])
    np.testing.assert_allclose(fitted[0], expected, rtol=1e-4, atol=1e-6)  # PyTorch adds 1e-6 to the length


def weights_of(run: Run) -> Array:
    """Return (d,) the linear model of a run, as sent."""
    return flattened({name: run.model[name] for name in ("output.weight", "output.bias")})


@pytest.mark.parametrize("strategy", ADJUSTED)
def test_one_step_is_the_plain_one_clipped_and_decayed(strategy: str, tmp_path: Path) -> None:
    """w1 = w0 - eta (g min(1, C / |g|) + lambda w0), where g is (w0 - w1) / eta of the plain step."""
    keys: dict[str, Scalar] = {
        "strategy": strategy, "dtype": "float64", "local-steps": 1, "num-server-rounds": 1, "learning-rate": 0.5
    }  # fmt: skip
    ends = []
    for number, more in enumerate(({}, BOTH, {"clip-gradient": 1e6})):
        run, tap = federate(tmp_path / str(number), {**keys, **more}, clients=1)
        ends.append(weights_of(run))
    w = model_of(next(e.message for e in tap.exchanges if not e.phase))[0]
    gradient = (w - ends[0]) / 0.5
    assert np.linalg.norm(gradient) > 0.1
    clipped = gradient * 0.05 / np.linalg.norm(gradient)
    np.testing.assert_allclose(ends[1], w - 0.5 * (clipped + 0.3 * w), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ends[2], ends[0], rtol=1e-12, atol=1e-14)


def test_noisy_gradients_are_adjusted_after_the_noise(tmp_path: Path) -> None:
    keys: dict[str, Scalar] = {"strategy": "local-sgd", "local-steps": 1, "num-server-rounds": 1, "learning-rate": 0.5}
    budget: dict[str, Scalar] = {"privacy.epsilon": 0.1, "clip-gradient": 0.01}
    run, tap = federate(tmp_path / "run", {**keys, **budget}, clients=1)
    start = model_of(tap.exchanges[0].message)[0]
    assert np.linalg.norm(weights_of(run) - start) == pytest.approx(0.5 * 0.01, rel=1e-4)


@pytest.mark.parametrize("key", BOTH)
@pytest.mark.parametrize("strategy", [name for name in ALGORITHMS if name not in ADJUSTED])
def test_other_strategies_refuse_them(strategy: str, key: str) -> None:
    with refuses(ConfigError, f"{key}: got {BOTH[key]}, allowed: 0, since strategy '{strategy}' does not support"):
        parse_run_config({"strategy": strategy, key: BOTH[key]})
    parse_run_config({"strategy": strategy, key: 0.0})
