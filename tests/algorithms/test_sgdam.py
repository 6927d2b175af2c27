"""LocalSGDAM: step by step against the NumPy reference, what travels, and where it is CoDA."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apps.config import ConfigError, Scalar, parse_run_config
from clients.base import Site
from clients.sgdam import LocalSGDAMClient
from payloads.record import Payload
from payloads.settings import TrainingSettings
from payloads.sgdam import SaddleMomentum, SGDAMDown, SGDAMSettings
from payloads.wire import PAYLOAD
from problems.minimax import FunctionOracle, SyntheticPL
from strategies.sgdam import LocalSGDAM
from tests.algorithms.test_coda import CLOSE, EXACT, KEYS, ROUNDS, SITES, STEPS, Saddle, _identity, data, decoded
from tests.battery.federation import federate
from tests.reference import minimax
from tests.reference.minimax import Array

__all__ = ["_identity", "data"]  # fixtures


def reference(one: Saddle) -> Iterator[tuple[Array, Array]]:
    """(z, m) after every round; drops of the learning rate at the rounds' ends only."""
    problem, settings = one.problem(), one.settings
    z, momentum = one.start, None
    for t in range(ROUNDS):
        drop = one.rate(t * STEPS) / one.training.learning_rate
        z, momentum = minimax.localsgdam_round(
            problem,
            z,
            momentum,
            one.participants(t + 1),
            one.batch,
            STEPS,
            t * STEPS,
            settings.eta,
            settings.gamma_x * drop,
            settings.gamma_y * drop,
            settings.beta_x,
            settings.beta_y,
        )
        yield z, momentum


VARIANTS: dict[str, dict[str, Scalar]] = {
    "base": {},
    "blocks": {"sgdam.eta": 0.5, "sgdam.gamma-x": 0.2, "sgdam.gamma-y": 0.7, "sgdam.beta-x": 0.4, "sgdam.beta-y": 1.9},
    "sigmoid": {"score": "sigmoid", "sgdam.beta-x": 1.0},
    "half": {"fraction-train": 0.5, "sgdam.beta-x": 1.0, "sgdam.beta-y": 0.5},
    "drops": {"lr-decay": 0.5, "lr-decay-every": STEPS, "sgdam.beta-x": 1.0},
    "one-step": {"sgdam.beta-x": 0.1, "sgdam.beta-y": 0.1},
}
PL: dict[str, Scalar] = {"dataset": "synthetic-pl", "sgdam.gamma-x": 0.02, "sgdam.gamma-y": 0.03, "sgdam.beta-y": 0.7}


def assert_follows(one: Saddle) -> None:
    for server_round, (z, momentum) in enumerate(reference(one), start=1):
        np.testing.assert_allclose(one.round(server_round), z, **CLOSE)
        np.testing.assert_allclose(one.strategy.momentum, momentum, **CLOSE)


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_follows_the_reference(variant: str, data: dict[str, Scalar]) -> None:
    assert_follows(Saddle({**KEYS, **data, "strategy": "local-sgdam", **VARIANTS[variant]}))


def test_it_follows_the_reference_on_a_problem_of_its_own() -> None:
    assert_follows(Saddle({**KEYS, "strategy": "local-sgdam", **PL}, clients=3))


# One client with beta * eta = 1 is CoDA without a pull, learning rate gamma * eta.

DROPS: dict[str, Scalar] = {"lr-decay": 0.5, "lr-decay-every": 4}  # inside rounds too


@pytest.mark.parametrize("more", [{}, DROPS, {"lr-decay": 0.1, "lr-decay-at": "0.5,0.75"}, {"score": "sigmoid"}])
def test_one_client_without_memory_is_coda(more: dict[str, Scalar], data: dict[str, Scalar]) -> None:
    eta, gamma = 0.4, 0.5
    common = {**KEYS, **data, "partition": "iid", **more}
    coda = {"strategy": "coda", "coda.proximal": 0.0, "learning-rate": gamma * eta}
    own = {f"sgdam.{key}": value for key, value in {"eta": eta, "gamma-x": gamma, "gamma-y": gamma}.items()}
    sgdam = {"strategy": "local-sgdam", **own, "sgdam.beta-x": 1 / eta, "sgdam.beta-y": 1 / eta}
    left, right = (Saddle({**common, **keys}, clients=1) for keys in (coda, sgdam))
    for a, b in zip(left.rounds(), right.rounds(), strict=True):
        np.testing.assert_allclose(a, b, **EXACT)
    assert np.abs(left.point - left.start).max() > 0.05


def test_the_first_round_of_many_clients_is_coda_s_too(data: dict[str, Scalar]) -> None:
    coda = {"strategy": "coda", "coda.proximal": 0.0, "learning-rate": 0.2}
    sgdam = {"strategy": "local-sgdam", "sgdam.eta": 1.0, "sgdam.gamma-x": 0.2, "sgdam.gamma-y": 0.2}
    left = Saddle({**KEYS, **data, **coda})
    right = Saddle({**KEYS, **data, **sgdam, "sgdam.beta-x": 1.0, "sgdam.beta-y": 1.0})
    np.testing.assert_allclose(left.round(1), right.round(1), **EXACT)


def test_the_learning_rate_itself_has_no_effect(data: dict[str, Scalar]) -> None:
    points = []
    for rate in (0.125, 64.0):
        one = Saddle({**KEYS, **data, "strategy": "local-sgdam", "learning-rate": rate, **DROPS})
        points.append(one.rounds()[-1])
    np.testing.assert_array_equal(*points)


# What travels and what is kept.


def test_the_momentum_travels_both_ways_and_is_averaged(data: dict[str, Scalar]) -> None:
    one = Saddle({**KEYS, **data, "strategy": "local-sgdam"})
    one.rounds(3)
    sent = [[decoded(SGDAMDown, e.message) for e in one.exchanges(r)] for r in (1, 2, 3)]
    assert [payload.momentum for payload in sent[0]] == [None] * SITES
    assert all(payload.class_counts.sum() == 110 for payloads in sent for payload in payloads)
    for server_round in (1, 2):
        returned = [decoded(SaddleMomentum, e.reply).momentum for e in one.exchanges(server_round)]
        for payload in sent[server_round]:
            np.testing.assert_allclose(payload.momentum, np.mean(returned, axis=0), **EXACT)


def test_a_round_takes_the_next_rounds_first_batch() -> None:
    """Iteration t takes batch t + 1: batch 0 is the first round's alone."""
    data = torch.from_numpy(np.random.default_rng(0).normal(size=(12, 3, 2)))
    site = Site.from_arrays(0, data.numpy(), np.zeros(12), dtype=torch.float64)
    oracle = FunctionOracle(SyntheticPL(data), dtype=torch.float64, device=torch.device("cpu"))
    training = TrainingSettings(local_steps=3, batch_size=4, dtype="float64")
    client = LocalSGDAMClient(site, oracle, training)
    taken: list[int] = []

    class Counting:
        def batch(self, position: int) -> Any:
            taken.append(position)
            return np.arange(4)

    client.sampler = Counting  # type: ignore[assignment]
    client.fit([np.zeros(4)], {"server-round": 1})
    client.inbox = SGDAMDown(momentum=client.outbox.momentum)
    client.fit([np.zeros(4)], {"server-round": 2})
    assert taken == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_number_types(dtype: str, data: dict[str, Scalar]) -> None:
    one = Saddle({**KEYS, **data, "strategy": "local-sgdam", "dtype": dtype})
    one.rounds(2)
    found: list[Payload] = [decoded(SaddleMomentum, e.reply) for e in one.grid.exchanges]
    found += [decoded(SGDAMDown, e.message) for e in one.exchanges(2)]
    assert {payload.momentum.dtype.name for payload in found} == {dtype}  # type: ignore[attr-defined]


@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("cut", [1, 3])
def test_a_resumed_run_is_the_whole_one(fraction: float, cut: int, data: dict[str, Scalar], tmp_path: Path) -> None:
    config = {**data, "strategy": "local-sgdam", "fraction-train": fraction, "checkpoint-every": cut}
    config |= {"num-server-rounds": 5, "sgdam.beta-x": 0.5, "sgdam.beta-y": 0.5}
    whole, _ = federate(tmp_path / "whole", config, SITES)
    federate(tmp_path / "parts", {**config, "num-server-rounds": cut}, SITES)
    parts, _ = federate(tmp_path / "parts", {**config, "resume": True}, SITES)
    assert parts.untimed == whole.untimed
    assert parts.model_bytes == whole.model_bytes


def test_a_lost_momentum_drops_its_client(data: dict[str, Scalar]) -> None:
    def lose(exchange: Any) -> Any:
        if exchange.partition == 1:
            del exchange.reply.content[PAYLOAD]
        return exchange.reply

    one = Saddle({**KEYS, **data, "strategy": "local-sgdam"}, tamper=lose)
    one.round(1)
    returned = [decoded(SaddleMomentum, e.reply).momentum for e in one.exchanges(1) if e.partition != 1]
    np.testing.assert_allclose(one.strategy.momentum, np.mean(returned, axis=0), **EXACT)
    assert list(one.strategy.report.dropped) == [1]


# Errors.


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"sgdam.beta-x": 5.0}, ["sgdam.beta-x: got 5.0, allowed: ", "eta * beta-x <= 1"]),
        ({"sgdam.beta-y": 5.0}, ["sgdam.beta-y: got 5.0, allowed: ", "eta * beta-y <= 1"]),
        ({"sgdam.eta": 0.5}, ["sgdam.beta-x: got 3.3, allowed: ", "sgdam.beta-y: got 3.3, allowed: "]),
        ({"sgdam.eta": 0.5, "sgdam.beta-x": 2.0}, ["sgdam.beta-y: got 3.3"]),
        ({"sgdam.eta": 0.0}, ["sgdam.eta: got 0.0", "number > 0"]),
        ({"sgdam.gamma-x": -1.0}, ["sgdam.gamma-x: got -1.0", "number > 0"]),
        ({"sgdam.gamma-y": 0}, ["sgdam.gamma-y: got 0", "number > 0"]),
        ({"sgdam.beta-x": 0.0}, ["sgdam.beta-x: got 0.0", "number > 0"]),
        ({"strategy": "fedx2", "sgdam.beta-x": 5.0}, ["sgdam.beta-x: got 5.0"]),
    ],
)
def test_a_refusal_names_key_value_and_what_is_allowed(values: dict[str, Scalar], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_run_config({"strategy": "local-sgdam", **values})
    message = str(refused.value)
    assert [part for part in parts if part not in message] == []
    assert message.count("sgdam.") == len([part for part in parts if part.startswith("sgdam.")])


@pytest.mark.parametrize(("eta", "beta"), [(0.3, 1 / 0.3), (1.0, 1.0), (0.1, 10.0), (1e-3, 1e3)])
def test_a_weight_of_one_is_allowed(eta: float, beta: float) -> None:
    values: dict[str, Scalar] = {"sgdam.eta": eta, "sgdam.beta-x": beta, "sgdam.beta-y": beta}
    assert parse_run_config({"strategy": "local-sgdam", **values}).family == SGDAMSettings(
        eta=eta, beta_x=beta, beta_y=beta
    )


def test_the_halves_have_defaults_of_their_own() -> None:
    strategy = LocalSGDAM()
    assert strategy.settings == SGDAMSettings()
    assert strategy.snapshot() is None
    assert strategy.down(1).arrays() == {}
