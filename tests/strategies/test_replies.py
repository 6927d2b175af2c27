"""Tests of a round's replies: good replies in order, bad replies dropped by name."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord

from apps.client_app import app as client_app
from apps.config import parse_run_config
from apps.sites.resources import federated_data, new_model
from methods.predictions import FedXPredictions
from payloads.wire import ARRAYS, METRICS, NUM_EXAMPLES, PAYLOAD, ROUND, count_bytes, model_arrays, model_record
from problems.models.vectors import exact_mean, mean
from simulations.engines.in_process import InProcessGrid
from strategies.base import PayloadStrategy
from strategies.fedx import FedX1, FedX2
from strategies.rounds.errors import StrategyError
from tests.refusals import refuses

KEYS = {"local-steps": 2, "learning-rate": 0.01, "model": "linear", "dataset": "breast-cancer"}
CLIENTS = 3


class Round:
    """Round 1 of a federation whose replies have arrived but are still unread."""

    def __init__(self, strategy: str = "local-sgd", **more: Any) -> None:
        flat = {**KEYS, "strategy": strategy, **{key.replace("_", "-"): value for key, value in more.items()}}
        config = parse_run_config(flat)
        self.grid = InProcessGrid(client_app, CLIENTS, flat)
        self.strategy: PayloadStrategy = config.algorithm.strategy(config.training, config.family)
        self.start = new_model(config, federated_data(config.data, CLIENTS).input_shape).arrays()
        self.messages = list(self.strategy.configure_train(1, model_record(self.start), ConfigRecord(), self.grid))
        self.replies = list(self.grid.send_and_receive(self.messages))

    def receive(self) -> list[int]:
        """Return the indices of the good replies."""
        return [reply.client for reply in self.strategy.receive(1, self.replies)]

    @property
    def dropped(self) -> dict[int, str]:
        return self.strategy.report.dropped


def test_good_replies_are_read_in_the_order_of_partitions_whatever_the_order_of_arrival() -> None:
    sent = []
    for order in ([0, 1, 2], [2, 0, 1]):
        one = Round("fedx2")
        arrays, _ = one.strategy.aggregate_train(1, [one.replies[i] for i in order])
        assert arrays is not None
        pool, report = one.strategy.down(2), one.strategy.report
        assert pool is not None
        sent.append([model_arrays(arrays)[0].tobytes(), *(value.tobytes() for value in pool.arrays().values())])
        assert report.answered == report.asked == [0, 1, 2]
        assert report.bytes_up == sum(count_bytes(reply.content) for reply in one.replies)
        assert report.bytes_down == sum(count_bytes(message.content) for message in one.messages)
    assert sent[0] == sent[1]


def test_the_model_is_the_plain_mean_of_the_good_replies() -> None:
    one = Round()
    one.replies[1].content.metric_records[METRICS][ROUND] = 9
    arrays, metrics = one.strategy.aggregate_train(1, one.replies)
    assert arrays is not None
    first, last = (model_arrays(one.replies[i].content.array_records[ARRAYS])[0] for i in (0, 2))
    expected = ((first.astype(np.float64) + last) / 2).astype(np.float32)
    np.testing.assert_array_equal(model_arrays(arrays)[0], expected)
    assert metrics == MetricRecord({NUM_EXAMPLES: 152 + 152})


def test_mean_is_accumulated_in_float64() -> None:
    values = [np.array([2.0**24], "float32"), np.array([1.0], "float32"), np.array([1.0], "float32")]
    assert mean(values).dtype == np.float32
    assert mean(values)[0] == np.float32((2**24 + 2) / 3)


def test_the_mean_of_long_arrays_is_that_of_their_numbers() -> None:
    """They are added up block by block."""
    values = [np.arange(place, 2**17 + 3 + place, dtype=np.float32).reshape(-1, 5) for place in range(3)]
    weights = np.array([0.5, 1.5, 1.0])
    added = (0.5 * values[0].astype(np.float64) + 1.5 * values[1].astype(np.float64)) + values[2].astype(np.float64)
    np.testing.assert_array_equal(exact_mean(values, weights), added / 3)


def metrics_of(reply: Message) -> MetricRecord:
    return reply.content.metric_records[METRICS]


def with_model(one: Round, *arrays: np.ndarray) -> None:
    one.replies[1].content[ARRAYS] = model_record(arrays)


# the faults of partition 1's reply; `tests.battery.test_bad_replies` lists the faults that every algorithm must reject
BAD: dict[str, tuple[Callable[[Round], object], str]] = {
    "error without a reason": (
        lambda one: one.replies.__setitem__(1, Message(Error(8), reply_to=one.messages[1])),
        "error code 8",
    ),
    "missing": (lambda one: one.replies.pop(1), "no answer"),
    "round is a list": (
        lambda one: metrics_of(one.replies[1]).__setitem__(ROUND, [1]),
        "reply of round [1], expected 1",
    ),
    "nan": (
        lambda one: with_model(one, np.where(np.arange(31) == 3, np.float32(np.nan), one.start[0])),
        "model: 1 of 31 values of 'parameters' are not finite",
    ),
    "two arrays": (lambda one: with_model(one, one.start[0], one.start[0]), "model: got 2 arrays, expected 1"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_dropped_with_its_reason(kind: str) -> None:
    one, (spoil, reason) = Round("fedx2", min_train_nodes=2), BAD[kind]
    spoil(one)
    one.strategy.aggregate_train(1, one.replies)
    assert one.dropped == {1: reason}
    assert one.strategy.report.answered == [0, 2]
    assert isinstance(one.strategy, FedX2)  # it leaves no run
    assert one.strategy.state.runs[:, :3].tolist() == [[1, 2, 0], [1, 2, 2]]  # round, participants, index


@pytest.mark.parametrize(("count", "shown"), [(-5, "-5"), ([1, 2], "[1, 2]"), (np.nan, "nan"), (np.inf, "inf")])
def test_a_count_that_cannot_be_is_dropped(count: Any, shown: str) -> None:
    one = Round()
    metrics_of(one.replies[1])[NUM_EXAMPLES] = float(count) if isinstance(count, float) else count
    assert one.receive() == [0, 2]
    assert one.dropped == {1: f"'num-examples' is {shown}, expected a number >= 0"}


def test_the_replies_of_the_round_before_are_ignored() -> None:
    one = Round()
    again = list(one.strategy.configure_train(1, model_record(one.start), ConfigRecord(), one.grid))
    fresh = list(one.grid.send_and_receive(again))
    replies = one.strategy.receive(1, [*one.replies, *fresh[:2]])
    assert [reply.client for reply in replies] == [0, 1]
    assert [reply.num_examples for reply in replies] == [152, 152]
    assert one.dropped == {2: "no answer"}
    assert one.strategy.report.bytes_up == sum(count_bytes(reply.content) for reply in fresh[:2])


def test_a_reply_given_twice_counts_once() -> None:
    models = []
    for bad in (None, Error(2, "broke")):  # a bad repetition does not take back a good reply either
        one = Round("fedx2")
        more = [one.replies[0], Message(bad, reply_to=one.messages[0])] if bad else []
        arrays, _ = one.strategy.aggregate_train(1, [*one.replies, *more])
        assert arrays is not None
        models.append(model_arrays(arrays)[0].tobytes())
        assert one.strategy.report.answered == [0, 1, 2]
        assert one.dropped == {}
        assert isinstance(one.strategy, FedX2)
        assert one.strategy.state.runs[:, 2].tolist() == [0, 1, 2]
    assert models[0] == models[1]


@pytest.mark.parametrize(("minimum", "bad"), [(1, range(3)), (3, range(1))])
def test_too_few_good_replies_end_the_run(minimum: int, bad: range) -> None:
    one = Round(min_train_nodes=minimum)
    for i in bad:
        one.replies[i] = Message(Error(2, f"broke {i}"), reply_to=one.messages[i])
    reason = rf"round 1: {3 - len(bad)} of 3 clients sent a valid reply, .*={minimum} requires \d; partition 0: broke 0"
    with pytest.raises(StrategyError, match=reason):
        one.strategy.aggregate_train(1, one.replies)


def test_at_least_min_train_nodes_are_asked() -> None:
    assert len(Round(fraction_train=0.4).messages) == 1
    assert len(Round(fraction_train=0.4, min_train_nodes=2).messages) == 2
    with refuses(StrategyError, "min-train-nodes: got 4 for round 1, allowed: at most 3"):
        Round(min_train_nodes=4)


# FedX's payload.


def send(one: Round, **changes: Any) -> None:
    """Change partition 1's prediction set."""
    record = one.replies[1].content.config_records[PAYLOAD]
    payload = replace(FedXPredictions.from_record(record), **changes)
    one.replies[1].content[PAYLOAD] = payload.to_record()


BATCH = {"fedx.positive-batch-size": 4, "fedx.negative-batch-size": 5}


@pytest.mark.parametrize(
    ("number", "keys", "changes", "reason"),
    [
        (1, BATCH, {"positive_scores": np.full(8, np.nan, "f4")}, "positive_scores: 8 of 8 values are not finite"),
        (2, BATCH, {"partner_labels": np.zeros(10, bool)}, "partner_labels: needed for auprc"),
        (2, {"loss": "auprc"}, {"partner_labels": None}, "partner_labels: needed for auprc"),
        (2, BATCH, {"momentum": np.zeros(30, "f4")}, "momentum: got shape (30,), expected (31)"),
        (2, BATCH, {"positive_u": None}, "positive_u: missing although a momentum was sent"),
        (2, BATCH, {"positive_u": np.ones((8, 2), "f4")}, "positive_u: got shape (8, 2), allowed: at most (8, 1)"),
        (2, BATCH, {"positive_u": np.full((8, 1), np.inf, "f4")}, "positive_u: 8 of 8 values are not finite"),
    ],
)  # fmt: skip
def test_an_impossible_prediction_set_is_dropped(
    number: int, keys: dict[str, Any], changes: dict[str, Any], reason: str
) -> None:
    one = Round(f"fedx{number}", **keys)
    send(one, **changes)
    assert one.receive() == [0, 2]
    assert reason in one.dropped[1]


def test_fedx1_needs_a_linear_loss() -> None:
    with refuses(StrategyError, "loss: got 'kl-opauc'.*allowed: a linear f .*fedx1; .*fedx2"):
        FedX1(parse_run_config({"loss": "kl-opauc"}).training)
