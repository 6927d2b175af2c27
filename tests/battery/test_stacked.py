"""Stacked clients train as clients one after another do."""

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import apps.guards.work
from apps.config import ConfigError, Scalar
from apps.registry import ALGORITHMS
from clients.base import MethodClient
from clients.scoring import CodascaClient, ScaffoldClient
from simulations.arguments import AUTO
from simulations.engines.stacked import messages
from simulations.python.runs import run
from tests.algorithms.test_adam import ADAM, WITH_ADAM
from tests.algorithms.test_adjustment import ADJUSTED
from tests.battery.federation import federate
from tests.battery.test_resume import assert_same_run
from tests.battery.test_trajectories import CASES, COMMON, RECORDED, RUNS_RECORDED, trajectory
from tests.refusals import refuses

HORIZONTAL = [run for run in RUNS_RECORDED if ALGORITHMS[run[0].split(",")[0]].strategy.shares_model]
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}  # relative to the values' Euclidean norm
UNEQUAL: dict[str, Scalar] = {"partition": "dirichlet", "dataset": "breast-cancer", "batch-size": 8}


@pytest.fixture
def stacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of clients in each stack that the test trains."""
    sizes: list[int] = []
    fit = messages.fit_together

    def fit_together(clients: Any, *others: Any) -> Any:
        sizes.append(len(clients))
        return fit(clients, *others)

    monkeypatch.setattr(messages, "fit_together", fit_together)
    return sizes


@pytest.mark.parametrize(("case", "dtype"), HORIZONTAL)
def test_messages_and_models_are_those_recorded(case: str, dtype: str, tmp_path: Path, stacked: list[int]) -> None:
    found, norms = trajectory(case, dtype, tmp_path, stack=4)
    assert max(stacked) > 1
    assert (np.abs(found - np.load(RECORDED)[f"{case} {dtype}"]) <= TOLERANCE[dtype] * (1 + norms)).all()


@pytest.mark.parametrize(
    ("strategy", "more"),
    [(name, {}) for name in ADJUSTED] + [(name, {"learning-rate": 0.01, **ADAM}) for name in WITH_ADAM],
)
def test_gradients_are_clipped_and_decay_client_by_client(
    strategy: str, more: dict[str, Scalar], tmp_path: Path, stacked: list[int]
) -> None:
    config: dict[str, Scalar] = {"strategy": strategy, "dtype": "float64", "model": "mlp", "learning-rate": 0.3}
    config |= more
    if strategy in ADJUSTED:
        config |= {"clip-gradient": 0.05, "weight-decay": 0.3}
    alone, _ = federate(tmp_path / "alone", config, clients=3)
    together, _ = federate(tmp_path / "together", config, clients=3, stack=3)
    assert max(stacked) == 3
    for name, value in alone.model.items():
        np.testing.assert_allclose(together.model[name], value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("case", dict.fromkeys(run[0] for run in HORIZONTAL))
def test_sites_of_one_class_are_stacked_too(case: str, threads: int, tmp_path: Path, stacked: list[int]) -> None:
    """Two sites without positives, two without negatives, and two with both, in stacks that train at the same time."""
    strategy = case.split(",")[0]
    config: dict[str, Scalar] = {**COMMON, **CASES[case], "strategy": strategy, "num-server-rounds": 2}
    config["partition-rows"] = "9:0,9:0,9:1,9:1,9:0.5,9:0.5"
    if "float64" in ALGORITHMS[strategy].traits.number_types:
        config["dtype"] = "float64"
    alone, _ = federate(tmp_path / "alone", config, clients=6)
    together, _ = federate(tmp_path / "together", {**config, "torch-threads": threads}, clients=6, stack=6)
    assert [line["dropped"] for line in together.lines] == [line["dropped"] for line in alone.lines]
    for name, value in alone.model.items():
        np.testing.assert_allclose(together.model[name], value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("strategy", ["scaffold", "fedcanon", "fedx2"])
def test_a_run_that_was_cut_and_continued_is_the_whole_one(strategy: str, tmp_path: Path, stacked: list[int]) -> None:
    config: dict[str, Scalar] = {**UNEQUAL, "strategy": strategy, "checkpoint-every": 2, "num-server-rounds": 4}
    whole, _ = federate(tmp_path / "whole", config, clients=6, stack=3)
    federate(tmp_path / "cut", {**config, "num-server-rounds": 2}, clients=6, stack=3)
    cut, _ = federate(tmp_path / "cut", {**config, "resume": True}, clients=6, stack=3)
    assert max(stacked) > 1
    assert_same_run(cut, whole)


@pytest.mark.parametrize("client", [ScaffoldClient, CodascaClient])
def test_a_method_may_start_client_by_client(
    client: type[MethodClient[Any]], tmp_path: Path, stacked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "method", replace(client.method, stacked=False))
    config: dict[str, Scalar] = {**UNEQUAL, "strategy": client.__name__.removesuffix("Client").lower()}
    config["dtype"] = "float64"
    alone, _ = federate(tmp_path / "alone", config, clients=4)
    together, _ = federate(tmp_path / "together", config, clients=4, stack=4)
    assert max(stacked) == 4
    for name, value in alone.model.items():
        np.testing.assert_allclose(together.model[name], value, rtol=1e-10, atol=1e-12)


def test_one_client_s_fault_is_its_own(tmp_path: Path, stacked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    made = apps.guards.work.make_client

    def make(*args: Any) -> Any:
        def refuse(config: object) -> Any:
            raise ValueError("this site is out of order")

        client = made(*args)
        if client.site.partition_id == 1:
            client.received = refuse
        return client

    monkeypatch.setattr(apps.guards.work, "make_client", make)
    config: dict[str, Scalar] = {"strategy": "scaffold", "dtype": "float64"}
    alone, _ = federate(tmp_path / "alone", config, clients=4)
    together, _ = federate(tmp_path / "together", config, clients=4, stack=4)
    assert max(stacked) == 4
    assert [line["dropped"] for line in together.lines] == [line["dropped"] for line in alone.lines]
    assert "this site is out of order" in together.lines[1]["dropped"]["1"]
    for name, value in alone.model.items():
        np.testing.assert_allclose(together.model[name], value, rtol=0, atol=1e-12)


def test_other_networks_train_alone(tmp_path: Path, stacked: list[int]) -> None:
    model = "tests.algorithms.minimax_problems:normed_and_dropped"
    config: dict[str, Scalar] = {"strategy": "local-sgd", "model": model, "num-server-rounds": 1}
    alone, _ = federate(tmp_path / "alone", config)
    together, _ = federate(tmp_path / "together", config, stack=8)
    assert together.model_bytes == alone.model_bytes
    assert not stacked


def test_auto_says_what_it_chose(tmp_path: Path, stacked: list[int], caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.INFO, "flwr"):
        federate(tmp_path / "run", {"strategy": "local-sgd", "local-steps": 20}, clients=12, stack=AUTO)
    assert stacked[:5] == [2, 8, 8, 12, 12]  # first a warm-up, then each tried size twice
    assert [record.getMessage()[:14] for record in caplog.records].count("stacking up to") == 1


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"stack": 0}, "stack: got 0, allowed: auto, or an integer >= 1"),
        ({"stack": 4, "threads": 2}, "--threads: got 2 with --stack 4, allowed: 1"),
    ],
)
def test_what_does_not_fit_is_refused(keys: dict[str, Any], words: str, tmp_path: Path) -> None:
    with refuses(ConfigError, re.escape(words)):
        run({}, tmp_path / "run", 2, **keys)
    assert not (tmp_path / "run").exists()


def test_a_vertical_run_has_none() -> None:
    assert messages.make_stacker(AUTO, {"strategy": "vfb2-sgd"}) is None
