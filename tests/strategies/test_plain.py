"""Strategies with plain clients: ClientApps that train, and know neither the handshake nor payloads."""

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, Result, Strategy

from apps.registry import ALGORITHMS, ANALYSES
from methods.fedprox import FedProxSettings
from payloads.settings import PrivacySettings, TrainingSettings
from problems.errors import InputError
from simulations.engines.in_process import run_in_process
from strategies.fedx import FedX1
from strategies.local_sgd import FedProx, LocalSGD
from strategies.rounds.errors import StrategyError
from tests.refusals import refuses

SITES = 3
# a matrix in Fortran order, statistics of batch norm, and whole numbers, as in a module's state_dict()
START = {
    "weight": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "norm.running_var": np.ones(2, np.float32),
    "norm.num_batches_tracked": np.array(4),
}
Models = Mapping[str, np.ndarray[Any, Any]]
Reply = Callable[[Message, int], RecordDict]


def record_of(arrays: Models) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


def step(arrays: Models, place: int) -> dict[str, Any]:
    return {name: value + (1 if value.dtype.kind == "i" else 0.5 + place) for name, value in arrays.items()}


def reply_of(arrays: Models, **metrics: float) -> RecordDict:
    return RecordDict({"arrays": record_of(arrays), "metrics": MetricRecord({key: metrics[key] for key in metrics})})


def train(message: Message, place: int) -> RecordDict:
    moved = step({name: value.numpy() for name, value in message.content["arrays"].items()}, place)
    return reply_of(moved, **{"num-examples": 10 * (place + 1), "train_loss": float(place)})


def app_of(trains: Reply = train) -> ClientApp:
    app = ClientApp()

    @app.train()
    def _(message: Message, context: Context) -> Message:
        return Message(trains(message, int(context.node_config["partition-id"])), reply_to=message)

    return app


class Plain(NumPyClient):
    """The same client as a NumPyClient, which can also evaluate."""

    def __init__(self, place: int) -> None:
        self.place = place

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        moved = step(dict(zip(START, parameters, strict=True)), self.place)
        return list(moved.values()), 10 * (self.place + 1), {"train_loss": float(self.place), "note": "text"}

    def evaluate(self, parameters: list[Any], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        return float(config["server-round"]), 10, {"accuracy": 0.25 * self.place}


NUMPY_APP = ClientApp(lambda context: Plain(int(context.node_config["partition-id"])).to_client())


def run(strategy: Strategy, app: ClientApp, rounds: int = 2, start: Models = START) -> Result:
    results: list[Result] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        results.append(strategy.start(grid, initial_arrays=record_of(start), num_rounds=rounds))

    run_in_process(server, app, SITES, {})
    return results[0]


def values_of(result: Result) -> dict[str, Any]:
    return {name: array.numpy() for name, array in result.arrays.items()}


@pytest.mark.parametrize(("clients", "app"), [("message", app_of()), ("numpy", NUMPY_APP)])
def test_the_model_is_that_of_federated_averaging(clients: str, app: ClientApp) -> None:
    result, theirs = run(LocalSGD(clients=clients), app), run(FedAvg(fraction_evaluate=0.0), app_of())
    for name, value in values_of(theirs).items():
        own = result.arrays[name].numpy()
        assert (own.shape, own.dtype) == (START[name].shape, START[name].dtype)
        value = np.array(6) if own.dtype.kind == "i" else value  # Flower's means of whole numbers are fractions
        np.testing.assert_allclose(own, value, rtol=1e-6 if own.dtype == np.float32 else 1e-14)
    assert result.train_metrics_clientapp[2] == pytest.approx({"train_loss": 80 / 60, "num-examples": 60})
    measured = {2: {"loss": 2.0, "accuracy": 0.25, "num-examples": 30}} if clients == "numpy" else {}
    assert {2: dict(found)} if (found := result.evaluate_metrics_clientapp.get(2)) else measured == {}


def test_fedprox_sends_mu_and_the_callers_config() -> None:
    configs: list[dict[str, Any]] = []

    def note(message: Message, place: int) -> RecordDict:
        configs.append(dict(message.content["config"]))
        return train(message, place)

    strategy = FedProx(settings=FedProxSettings(proximal_mu=0.25), clients="message")
    with_lr = ConfigRecord({"lr": 0.1})
    server = ServerApp()
    server.main()(lambda grid, context: strategy.start(grid, record_of(START), num_rounds=1, train_config=with_lr))
    run_in_process(server, app_of(note), SITES, {})
    assert configs == [{"lr": 0.1, "proximal-mu": 0.25, "server-round": 1}] * SITES


def test_the_servers_settings_count_and_statistics_are_only_averaged(caplog: pytest.LogCaptureFixture) -> None:
    training = TrainingSettings(
        server_optimizer="momentum",
        server_learning_rate=2.0,
        client_weights="equal",
        aggregation="median",
        batch_size=8,
    )
    with caplog.at_level(logging.WARNING, "flwr"):
        found = values_of(run(LocalSGD(training, clients="message"), app_of(), rounds=1))
    np.testing.assert_allclose(found["weight"], START["weight"] + 2 * 1.5)  # the median client's step
    np.testing.assert_allclose(found["norm.running_var"], START["norm.running_var"] + 1.5)
    assert found["norm.num_batches_tracked"] == 5
    assert "no effect with plain clients: batch-size" in caplog.text


def test_a_wrapper_clips_plain_clients() -> None:
    floats = {"weight": START["weight"]}
    strategy = DifferentialPrivacyServerSideFixedClipping(LocalSGD(clients="message"), 0.0, 0.3, SITES)
    moved = values_of(run(strategy, app_of(), rounds=1, start=floats))["weight"] - floats["weight"]
    assert np.linalg.norm(moved) == pytest.approx(0.3)


GOOD = {"num-examples": 20}
FAILED = ConfigRecord({"code": 1, "message": "no memory"})
BAD: dict[str, tuple[Callable[[dict[str, Any]], RecordDict], str]] = {
    "no count": (lambda model: reply_of(model, loss=1.0), "reply with no num-examples"),
    "negative": (lambda model: reply_of(model, **{"num-examples": -1}), "reply with -1 num-examples"),
    "nan": (lambda model: reply_of(model, **{"num-examples": np.nan}), "reply with nan num-examples"),
    "too many": (lambda model: reply_of(model, **{"num-examples": 2**41}), "expected a number from 0"),
    "no model": (lambda model: RecordDict({"metrics": MetricRecord(GOOD)}), "reply with 0 models"),
    "two models": (
        lambda model: RecordDict({**reply_of(model, **GOOD), "more": record_of(model)}),
        "with 2 models",
    ),
    "a name": (lambda model: reply_of({"other": model["weight"]}, **GOOD), "model: got 1 arrays"),
    "a shape": (lambda model: reply_of({**model, "weight": np.ones(6)}, **GOOD), r"expected \(2, 3\)"),
    "text": (lambda model: reply_of({**model, "weight": np.array([["a"] * 3] * 2)}, **GOOD), r"expected \(2, 3\)"),
    "infinite": (lambda model: reply_of({**model, "weight": model["weight"] * np.inf}, **GOOD), "not finite"),
    "failed": (
        lambda model: RecordDict({**reply_of(model, **GOOD), "fitres.status": FAILED}),
        "the client failed: no memory",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_reply_is_dropped_with_its_reason(bad: str, caplog: pytest.LogCaptureFixture) -> None:
    make, reason = BAD[bad]

    def lie(message: Message, place: int) -> RecordDict:
        return RecordDict(dict(make(step(START, 0)))) if place == 0 else train(message, place)

    strategy = LocalSGD(clients="message")
    with caplog.at_level(logging.WARNING, "flwr"):
        model = values_of(run(strategy, app_of(lie), rounds=1))
    assert strategy.report.answered == [1, 2]
    assert re.search(reason, strategy.report.dropped[0])
    assert "dropped the reply of node 1000" in caplog.text
    np.testing.assert_allclose(model["weight"], START["weight"] + (20 * 1.5 + 30 * 2.5) / 50)


# Errors that name the remedy.

PLAIN = [name for name, row in ALGORITHMS.items() if row.traits.plain_clients]


def test_only_methods_that_send_the_model_alone_take_plain_clients() -> None:
    assert PLAIN == ["fedprox", "local-sgd"]
    for name in PLAIN:
        method = ALGORITHMS[name].strategy
        assert (method.down_type, method.up_type, method.phases) == (None, None, {})


@pytest.mark.parametrize("app", [app_of(), NUMPY_APP], ids=["message", "numpy"])
@pytest.mark.parametrize("name", [*ALGORITHMS, *ANALYSES])
def test_a_plain_client_ends_the_handshake_with_the_clients_that_are_needed(name: str, app: ClientApp) -> None:
    row = {**ALGORITHMS, **ANALYSES}[name]
    kind, strategy = "numpy" if app is NUMPY_APP else "message", row.strategy()
    needed = f'create {row.strategy.__name__} with clients="{kind}"'
    if name not in PLAIN:
        needed = f"{row.strategy.__name__} needs {row.client.__name__} at every site"
    with refuses(StrategyError, f"handshake: got node 1000, whose ClientApp .*{needed}"):
        run(strategy, app)


def test_wrong_kinds_of_clients_are_refused() -> None:
    with refuses(InputError, "clients: got 'numpy', allowed: florilegium; FedX1 needs FedX1Client at every site"):
        FedX1(clients="numpy")
    with refuses(InputError, "clients: got 'flower', allowed: florilegium, message, numpy"):
        LocalSGD(clients="flower")
    with pytest.raises(StrategyError, match='set clients="numpy"'):
        run(LocalSGD(clients="message"), NUMPY_APP)
    with pytest.raises(StrategyError, match='set clients="message"'):
        run(LocalSGD(clients="numpy"), app_of())


def test_plain_clients_exclude_privacy_settings_and_too_few_nodes() -> None:
    for setting in ("secure-sum", "epsilon"):
        strategy = LocalSGD(clients="message")
        strategy.privacy = PrivacySettings.model_validate({setting: True if setting == "secure-sum" else 1.0})
        with refuses(StrategyError, f"privacy: got privacy.{setting} with plain clients"):
            run(strategy, app_of())
    training = TrainingSettings(min_train_nodes=4, handshake_timeout=0.1)
    with refuses(StrategyError, "nodes: got 3 connected nodes within 0.1 s, allowed: at least 4"):
        run(LocalSGD(training, clients="message"), app_of())
    no_rows = app_of(lambda message, place: reply_of(step(START, place), **{"num-examples": 0}))
    with pytest.raises(StrategyError, match="set client-weights to equal"):
        run(LocalSGD(clients="message"), no_rows)
