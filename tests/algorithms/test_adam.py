"""Adam instead of SGD in local steps: PyTorch's Adam, reset each round; refused if a method has step-size theory."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from apps.config import ConfigError, Scalar, parse_run_config
from apps.registry import ALGORITHMS
from clients.base import Site
from clients.scoring import FedProxClient, LocalSGDClient
from methods.fedprox import FedProxSettings
from payloads.settings import Settings, TrainingSettings
from problems.models import FlatModel, build_model
from tests.algorithms.helpers import flattened
from tests.battery.federation import federate, model_of
from tests.refusals import refuses

ADAM: dict[str, Scalar] = {"local-optimizer": "adam"}
WITH_ADAM = ["fedprox", "local-sgd"]


@pytest.mark.parametrize("mu", [None, 0.5])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_of_two_rounds_are_those_of_pytorch(decay: float, mu: float | None) -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(40, 5)), (np.arange(40) % 3 == 0).astype(float)
    site = Site.from_arrays(0, features, labels, dtype=torch.float64)
    module, plain = (build_model("mlp", (5,), seed=0).double() for _ in range(2))
    for one in (module, plain):
        next(one.parameters()).requires_grad_(False)  # frozen parameters do not move
    training = TrainingSettings(
        local_optimizer="adam", local_steps=6, learning_rate=0.05, batch_size=0, dtype="float64", weight_decay=decay
    )
    kind, own = (LocalSGDClient, Settings()) if mu is None else (FedProxClient, FedProxSettings(proximal_mu=mu))
    model = FlatModel(module, dtype=torch.float64)
    client, arrays = kind(site, model, training, own), model.arrays()
    trained = [parameter for parameter in plain.parameters() if parameter.requires_grad]
    for server_round in (1, 2):
        arrays, _, _ = client.fit(arrays, {"server-round": server_round})
        optimiser = torch.optim.Adam(trained, lr=0.05, weight_decay=decay)
        begun = [parameter.detach().clone() for parameter in trained]
        for _ in range(6):
            optimiser.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(plain(torch.tensor(features)), torch.tensor(labels))
            pull = sum((w - start).square().sum() for w, start in zip(trained, begun, strict=True))
            (loss + (mu or 0.0) / 2 * pull).backward()
            optimiser.step()
    expected = flattened({name: value.detach().numpy() for name, value in plain.named_parameters()})
    np.testing.assert_allclose(arrays[0], expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("strategy", [name for name in ALGORITHMS if name not in WITH_ADAM])
def test_other_strategies_refuse_it(strategy: str) -> None:
    with refuses(
        ConfigError, "'adam', allowed: 'sgd', since .* its own steps; strategies with Adam: fedprox, local-sgd"
    ):
        parse_run_config({"strategy": strategy, **ADAM})


def test_its_own_step_is_shorter() -> None:
    steps = [parse_run_config({"strategy": "local-sgd", **more}).training.learning_rate for more in ({}, ADAM)]
    assert steps == [0.3, 0.01]


def test_noisy_gradients_go_through_it(tmp_path: Path) -> None:
    """Adam's first step changes each weight by eta, whatever the gradient."""
    config: dict[str, Scalar] = {"strategy": "local-sgd", "local-steps": 1, "num-server-rounds": 1, **ADAM}
    run, tap = federate(tmp_path / "run", {**config, "privacy.epsilon": 1.0}, clients=1)
    start = model_of(tap.exchanges[0].message)[0]
    moved = flattened({name: run.model[name] for name in ("output.weight", "output.bias")}) - start
    np.testing.assert_allclose(np.abs(moved), 0.01, rtol=1e-3)
