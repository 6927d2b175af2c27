"""Adam and AdamW instead of SGD in local steps: PyTorch's, reset each round; refused if a method has its own steps."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from apps.config import ConfigError, Scalar, parse_run_config
from apps.registry import ALGORITHMS
from clients.base import Site
from clients.scoring import FedProxClient, LocalPairClient, LocalSGDClient
from methods.fedprox import FedProxSettings
from methods.pairwise import FedXSettings
from payloads.settings import Settings, TrainingSettings
from problems.models import FlatModel, build_model
from tests.algorithms.helpers import flattened
from tests.algorithms.watched import CLOSE, STEPS, Watched
from tests.battery.federation import federate, model_of
from tests.refusals import refuses

ADAM: dict[str, Scalar] = {"local-optimizer": "adam"}
WITH_ADAM = ["coda", "fedprox", "fedx1", "fedx2", "local-pair", "local-sgd"]


@pytest.mark.parametrize("mu", [None, 0.5])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_steps_of_two_rounds_are_those_of_pytorch(optimizer: str, decay: float, mu: float | None) -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(40, 5)), (np.arange(40) % 3 == 0).astype(float)
    site = Site.from_arrays(0, features, labels, dtype=torch.float64)
    module, plain = (build_model("mlp", (5,), seed=0).double() for _ in range(2))
    for one in (module, plain):
        next(one.parameters()).requires_grad_(False)  # frozen parameters do not move
    training = TrainingSettings(
        local_optimizer=optimizer, local_steps=6, learning_rate=0.05, batch_size=0, dtype="float64", weight_decay=decay
    )
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    kind, own = (LocalSGDClient, Settings()) if mu is None else (FedProxClient, FedProxSettings(proximal_mu=mu))
    model = FlatModel(module, dtype=torch.float64)
    client, arrays = kind(site, model, training, own), model.arrays()
    trained = [parameter for parameter in plain.parameters() if parameter.requires_grad]
    for server_round in (1, 2):
        arrays, _, _ = client.fit(arrays, {"server-round": server_round})
        optimiser = kinds[optimizer](trained, lr=0.05, weight_decay=decay)
        begun = [parameter.detach().clone() for parameter in trained]
        for _ in range(6):
            optimiser.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(plain(torch.tensor(features)), torch.tensor(labels))
            pull = sum((w - start).square().sum() for w, start in zip(trained, begun, strict=True))
            (loss + (mu or 0.0) / 2 * pull).backward()
            optimiser.step()
    expected = {name: value.detach().numpy() for name, value in plain.named_parameters()}
    frozen = expected.pop("hidden.weight")
    np.testing.assert_allclose(arrays[0], flattened(expected), rtol=1e-9, atol=1e-11)
    np.testing.assert_array_equal(arrays[1], frozen.ravel())


def test_pairs_take_the_steps_of_pytorch() -> None:
    rng = np.random.default_rng(0)
    features, labels = torch.tensor(rng.normal(size=(12, 5))), np.arange(12) % 3 == 0
    site = Site.from_arrays(0, features.numpy(), labels.astype(float), dtype=torch.float64)
    training = TrainingSettings(
        local_optimizer="adamw", local_steps=6, learning_rate=0.05, dtype="float64", weight_decay=0.1, loss="logistic"
    )
    model = FlatModel(build_model("mlp", (5,), seed=0), dtype=torch.float64)
    own = FedXSettings(positive_batch_size=4, negative_batch_size=8)
    arrays, _, _ = LocalPairClient(site, model, training, own).fit(model.arrays(), {"server-round": 1})
    plain = build_model("mlp", (5,), seed=0).double()
    optimiser = torch.optim.AdamW(plain.parameters(), lr=0.05, weight_decay=0.1)
    for _ in range(6):
        optimiser.zero_grad()
        scores = plain(features)
        nn.functional.softplus(scores[~labels][None, :] - scores[labels][:, None]).mean().backward()
        optimiser.step()
    expected = flattened({name: value.detach().numpy() for name, value in plain.named_parameters()})
    # pairs do not depend on the last bias: Adam divides rounding errors by rounding errors
    np.testing.assert_allclose(arrays[0][:-1], expected[:-1], rtol=1e-9, atol=1e-11)


def test_coda_descends_and_ascends_with_it(tmp_path: Path) -> None:
    config: dict[str, Scalar] = {"strategy": "coda", "num-server-rounds": 1, "learning-rate": 0.05, **ADAM}
    one = Watched(tmp_path, config | {"coda.proximal": 0.5})
    problem, start = one.saddle(), one.models[0]
    p, ends = problem.primal_dim, []
    for client in range(problem.num_clients):
        z = torch.tensor(start)
        optimiser = torch.optim.Adam([z], lr=0.05)
        for iteration in range(STEPS):
            gradient = problem.gradient(client, z.numpy(), one.batch(client, iteration))
            z.grad = torch.tensor(np.append(gradient[:p], -gradient[p:]))
            optimiser.step()
            z[:p] = (z[:p] + 0.05 * 0.5 * torch.tensor(start[:p])) / (1 + 0.05 * 0.5)
        ends.append(z.numpy())
    np.testing.assert_allclose(one.models[1], np.mean(ends, axis=0), **CLOSE)


def test_fedx2_sends_no_momentum_with_it(tmp_path: Path) -> None:
    _, tap = federate(tmp_path / "run", {"strategy": "fedx2", "num-server-rounds": 2, **ADAM}, clients=2)
    fields = [set(e.reply.content.config_records["payload"]) for e in tap.exchanges if e.server_round and not e.phase]
    assert fields
    assert all("momentum" not in names for names in fields)


@pytest.mark.parametrize("strategy", [name for name in ALGORITHMS if name not in WITH_ADAM])
def test_other_strategies_refuse_it(strategy: str) -> None:
    with refuses(ConfigError, "'adam', allowed: 'sgd', since .* its own steps; strategies with Adam: .*fedprox"):
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
