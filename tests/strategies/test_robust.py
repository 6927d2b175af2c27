"""Tests that robust means over clients equal their definitions, and that one bad client of five ruins no model."""

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from scipy.stats import trim_mean

from apps.config import ConfigError, Scalar, parse_run_config
from apps.registry import ALGORITHMS
from apps.server_app import RunFailedError
from methods.scaffold import ControlChange
from payloads.settings import AGGREGATIONS, TrainingSettings
from payloads.wire import ARRAYS, model_arrays, model_record
from strategies.rounds.replies import Reply
from strategies.rounds.robust import make_robust
from tests.battery.federation import Exchange, federate
from tests.refusals import refuses

ROBUST = AGGREGATIONS[1:]
HORIZONTAL = [name for name, row in ALGORITHMS.items() if row.strategy.shares_model]
stacks = arrays_of.arrays(np.float64, st.tuples(st.integers(3, 9), st.integers(1, 5)), elements=st.floats(-9, 9))


def replies_of(points: np.ndarray) -> list[Reply]:
    return [Reply(place, [point], ControlChange(change=2 * point), 1) for place, point in enumerate(points)]


@given(stacks, st.sampled_from([0.0, 0.1, 0.2, 0.4]))
def test_each_mean_is_the_one_of_its_definition(points: np.ndarray, share: float) -> None:
    clients = len(points)
    cut = min(int(np.ceil(round(share * clients, 9))), (clients - 1) // 2)
    for name, expected in (
        ("trimmed-mean", trim_mean(points, (cut + 1e-9) / clients, axis=0)),
        ("median", np.median(points, axis=0)),
    ):
        training = TrainingSettings(aggregation=name, trim_fraction=share)  # type: ignore[arg-type]
        robust, _ = make_robust(replies_of(points), training, [np.zeros(points.shape[1])])
        for reply in robust:
            np.testing.assert_allclose(reply.model[0], expected, atol=1e-12)
            np.testing.assert_allclose(reply.payload.change, 2 * expected, atol=1e-12)


@given(stacks, st.sampled_from([0.0, 0.5, 20.0]))
def test_no_step_is_longer_than_the_bound_and_shorter_ones_stay(points: np.ndarray, bound: float) -> None:
    base = np.full(points.shape[1], 3.0)
    lengths = np.linalg.norm(points - base, axis=1)
    longest = bound or float(np.median(lengths))
    training = TrainingSettings(aggregation="norm-bound", norm_bound=bound)
    robust, bounded = make_robust(replies_of(points), training, [base])
    for reply, point, length in zip(robust, points, lengths, strict=True):
        assert np.linalg.norm(reply.model[0] - base) <= longest * (1 + 1e-9) + 1e-12
        if length <= longest:
            np.testing.assert_array_equal(reply.model[0], point)
    assert bounded >= (lengths > longest).sum()


def reverse(exchange: Exchange) -> Message:
    """Send the step of one client times -5."""
    if exchange.partition == 2 and ARRAYS in exchange.reply.content:
        begun, ended = (model_arrays(one.content[ARRAYS]) for one in (exchange.message, exchange.reply))
        exchange.reply.content[ARRAYS] = model_record(
            [old - 5 * (new - old) for old, new in zip(begun, ended, strict=True)]
        )
    return exchange.reply


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_one_client_of_five_ruins_no_robust_mean(aggregation: str, tmp_path: Path) -> None:
    config: dict[str, Scalar] = {
        "dataset": "breast-cancer",
        "strategy": "local-sgd",
        "num-server-rounds": 6,
        "local-steps": 32,
        "batch-size": 32,
        "aggregation": aggregation,
    }
    run, _ = federate(tmp_path / "run", config, clients=5, tamper=reverse)
    assert (run.result["metrics"]["auc"] >= 0.97) == (aggregation != "mean")
    assert all(line["bounded_clients"] >= 1 for line in run.lines[1:] if aggregation == "norm-bound")


# newton adds up sums, and warns that the key has no effect
@pytest.mark.parametrize("strategy", [name for name in HORIZONTAL if name != "newton"])
def test_every_mean_takes_the_key(strategy: str, tmp_path: Path) -> None:
    found = set()
    for aggregation in AGGREGATIONS:
        config: dict[str, Scalar] = {"strategy": strategy, "dataset": "breast-cancer", "aggregation": aggregation}
        run, _ = federate(tmp_path / aggregation, config, clients=5)
        assert run.result["rounds"] > 0
        found.add(run.model_bytes)
    assert len(found) >= 3  # a trimmed mean of two of the five gradients of FedSGDA is their median


def test_secure_sums_allow_a_fixed_bound_alone(tmp_path: Path) -> None:
    summed: dict[str, Scalar] = {"strategy": "local-sgd", "dataset": "breast-cancer", "privacy.secure-sum": True}
    for aggregation in ROBUST:
        with refuses(ConfigError, f"aggregation: got '{aggregation}' with privacy.secure-sum=true"):
            parse_run_config({**summed, "aggregation": aggregation})
    bound: dict[str, Scalar] = {"aggregation": "norm-bound", "norm-bound": 0.01, "dtype": "float64"}
    masked, _ = federate(tmp_path / "masked", {**summed, **bound}, clients=4)
    plain, _ = federate(tmp_path / "plain", {**summed, **bound, "privacy.secure-sum": False}, clients=4)
    for name, value in plain.model.items():
        np.testing.assert_allclose(masked.model[name], value, rtol=1e-9, atol=1e-12)


def test_two_clients_are_too_few(tmp_path: Path) -> None:
    with refuses(RunFailedError, "aggregation: got 'median' over 2 clients a round, allowed: 3 or more clients"):
        federate(tmp_path / "run", {"strategy": "local-sgd", "aggregation": "median"}, clients=2)
