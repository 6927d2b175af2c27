"""FedProx: whole runs step by step against the NumPy reference, and its server against Flower's own FedProx."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedProx as FlowerFedProx

from apps.client_app import app as client_app
from apps.config import Scalar, parse_run_config
from payloads.wire import METRICS, NUM_EXAMPLES, model_arrays, model_record
from simulations.engines.in_process import InProcessGrid
from tests.algorithms.test_sgdm import BATCH_NORM, problem_of
from tests.algorithms.watched import CLOSE, DROPS, EXACT, KEYS, ROUNDS, SITES, STEPS, Tamper, Watched
from tests.battery.federation import Exchange, model_of, serve
from tests.reference import scgdam
from tests.reference.minimax import Array


def reference(one: Watched) -> Iterator[Array]:
    problem, w = problem_of(one), one.models[0]
    for r in range(1, one.rounds + 1):
        rest = (lambda i, k, r=r: one.batch(i, (r - 1) * STEPS + k), STEPS, one.rates(r))
        w = scgdam.fedprox_round(problem, w, one.answered(r), *rest, one.settings.proximal_mu)
        yield w


def assert_follows(one: Watched) -> None:
    np.testing.assert_allclose(one.models[1:], list(reference(one)), **CLOSE)
    assert np.abs(one.models[-1] - one.models[0]).max() > 0.05


# Step by step.

VARIANTS: dict[str, dict[str, Scalar]] = {
    "base": {"fedprox.proximal-mu": 0.5},
    "strong": {"fedprox.proximal-mu": 5.0, "learning-rate": 0.15},
    "drops-at": {"fedprox.proximal-mu": 0.8, "lr-decay": 0.1, "lr-decay-at": "0.3,0.75"},
    "half": {"fedprox.proximal-mu": 0.5, "fraction-train": 0.5, **DROPS},
    "full-batch": {"fedprox.proximal-mu": 0.5, "batch-size": 0},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_follows_the_reference(variant: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    assert_follows(Watched(tmp_path, {**data, "strategy": "fedprox", **VARIANTS[variant]}))


# Special cases.


@pytest.mark.parametrize("client_weights", ["examples", "equal"])
def test_without_a_pull_it_is_local_sgd(client_weights: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    keys: dict[str, Scalar] = {**data, "client-weights": client_weights}
    one = Watched(tmp_path, {**keys, "strategy": "fedprox", "fedprox.proximal-mu": 0.0})
    other = Watched(tmp_path, {**keys, "strategy": "local-sgd"})
    ends = [model_of(e.reply)[0] for e in sorted(other.exchanges(1), key=lambda e: e.partition)]
    means = {"examples": np.average(ends, axis=0, weights=one.sizes), "equal": np.mean(ends, axis=0)}
    np.testing.assert_allclose(one.models, other.models, **EXACT)
    np.testing.assert_allclose(one.models[1], means[client_weights], **EXACT)
    assert np.abs(means["examples"] - means["equal"]).max() > 1e-3


def test_one_client_rests_where_the_pull_balances_the_gradient(data: dict[str, Scalar], tmp_path: Path) -> None:
    keys: dict[str, Scalar] = {"fedprox.proximal-mu": 0.8, "local-steps": 300, "batch-size": 0, "num-server-rounds": 1}
    one = Watched(tmp_path, {**data, "partition": "iid", "strategy": "fedprox", **keys}, clients=1)
    begun, found = one.models
    slope = problem_of(one).ce_gradient(0, found)
    np.testing.assert_allclose(slope, -0.8 * (found - begun), rtol=0, atol=1e-10)
    assert np.abs(slope).max() > 1e-2


# Comparison with Flower's server.


@pytest.mark.parametrize(("dtype", "model"), [("float32", BATCH_NORM["model"]), ("float64", "linear")])
def test_the_average_is_flower_s_to_the_bit(dtype: str, model: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Watched(tmp_path, {**data, "strategy": "fedprox", "dtype": dtype, "model": model})
    for r in range(1, ROUNDS):
        replies = [e.reply for e in sorted(one.exchanges(r), key=lambda e: e.partition)]
        arrays, _ = FlowerFedProx(proximal_mu=0.01).aggregate_train(r, replies)
        assert arrays is not None
        for e in one.exchanges(r + 1):
            assert all(map(np.array_equal, model_of(e.message), model_arrays(arrays)))
            assert {array.dtype.name for array in model_of(e.message)} == {dtype}


def test_flower_s_own_fedprox_drives_our_clients(
    data: dict[str, Scalar], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's strategy, in Flower's loop on our ClientApp, gives our run to the bit."""
    keys: dict[str, Scalar] = {**data, "strategy": "fedprox", "dtype": "float32"}
    ours = Watched(tmp_path, {**keys, "fedprox.proximal-mu": 0.5, "evaluate-every": 1})
    flat = {**KEYS, **keys}  # the messages contain mu
    monkeypatch.setattr(random, "sample", lambda nodes, count: sorted(nodes)[:count])  # the order of the sum
    ends: list[Any] = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = parse_run_config(context.run_config)
        evaluator = config.algorithm.evaluation.of_data(config, ours.data)

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            return MetricRecord({"loss": evaluator(model_arrays(arrays))["loss"]})

        strategy = FlowerFedProx(proximal_mu=0.5, fraction_evaluate=0.0)
        start = model_record([ours.models[0]])
        ends.append(strategy.start(grid, initial_arrays=start, num_rounds=ROUNDS, evaluate_fn=evaluate))

    serve(InProcessGrid(client_app, SITES, flat), app, flat)
    (result,) = ends
    np.testing.assert_array_equal(model_arrays(result.arrays)[0], ours.models[-1])
    losses = [metrics["loss"] for _, metrics in sorted(result.evaluate_metrics_serverapp.items())]
    assert losses == [line["loss"] for line in ours.run.lines]


def with_examples(counts: dict[int, int]) -> Tamper:
    def tamper(exchange: Exchange) -> Message:
        exchange.reply.content.metric_records[METRICS][NUM_EXAMPLES] = counts[exchange.partition]
        return exchange.reply

    return tamper


def test_the_weights_are_the_numbers_of_examples(data: dict[str, Scalar], tmp_path: Path) -> None:
    counts = {0: 1, 1: 0, 2: 5, 3: 2}
    one = Watched(tmp_path, {**data, "strategy": "fedprox"}, tamper=with_examples(counts))
    for r in range(1, ROUNDS + 1):
        ends = {e.partition: model_of(e.reply)[0] for e in one.exchanges(r)}
        np.testing.assert_allclose(one.models[r], (ends[0] + 5 * ends[2] + 2 * ends[3]) / 8, **EXACT)


def test_clients_without_examples_end_the_run(data: dict[str, Scalar], tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="round 1: every client that answered has 0 examples"):
        Watched(tmp_path, {**data, "strategy": "fedprox"}, tamper=with_examples(dict.fromkeys(range(SITES), 0)))
