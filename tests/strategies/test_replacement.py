"""Tests of ``replace-dropped``: each client without a good reply is replaced by another client."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message

from apps.client_app import app as client_app
from apps.config import Scalar, parse_run_config
from apps.sites.resources import federated_data, new_model
from methods.fedsgda import GRADIENTS, FedSGDADown, LocalGradient
from payloads.wire import METRICS, PAYLOAD, ROUND, count_bytes, model_arrays, model_record
from strategies.base import PayloadStrategy
from strategies.rounds.errors import StrategyError
from tests.battery.federation import Exchange, Wiretap, model_of

CLIENTS, WANTED = 8, 4
MODEL = 31 * 8  # bytes: thirty weights and a bias
KEYS: dict[str, Scalar] = {
    "dataset": "breast-cancer",
    "model": "linear",
    "local-steps": 2,
    "learning-rate": 0.01,
    "batch-size": 8,
    "fraction-train": WANTED / CLIENTS,
    "dtype": "float64",
    "replace-dropped": True,
}
Tamper = Callable[[Exchange], Message]


def broken(exchange: Exchange) -> Message:
    return Message(Error(2, "broke"), reply_to=exchange.message)


def stale(exchange: Exchange) -> Message:
    """Return a reply with content, from another round."""
    exchange.reply.content.metric_records[METRICS][ROUND] = 99
    return exchange.reply


def failing(partitions: set[int], phase: str | None = None, how: Tamper = broken) -> Tamper:
    """Make these sites fail in every exchange, or in the exchanges of one phase; a site may be asked once an
    exchange."""
    seen: set[tuple[int, str, int]] = set()

    def tamper(exchange: Exchange) -> Message:
        key = (exchange.server_round, exchange.phase, exchange.partition)
        assert key not in seen
        seen.add(key)
        fails = exchange.partition in partitions and phase in (None, exchange.phase)
        return how(exchange) if fails else exchange.reply

    return tamper


class Round:
    """One round of a strategy, driven as a round loop does it."""

    def __init__(self, tamper: Tamper | None = None, strategy: str = "local-sgd", **more: Any) -> None:
        flat = {**KEYS, "strategy": strategy, **{key.replace("_", "-"): value for key, value in more.items()}}
        self.config = parse_run_config(flat)
        self.grid = Wiretap(client_app, CLIENTS, flat, tamper=tamper)
        self.strategy: PayloadStrategy = self.config.algorithm.strategy(self.config.training, self.config.family)
        self.model = model_record(
            new_model(self.config, federated_data(self.config.data, CLIENTS).input_shape).arrays()
        )

    def play(self, server_round: int = 1) -> np.ndarray:
        """Return the new model."""
        self.grid.exchanges.clear()
        messages = list(self.strategy.configure_train(server_round, self.model, ConfigRecord(), self.grid))
        arrays, _ = self.strategy.aggregate_train(server_round, self.grid.send_and_receive(messages))
        assert arrays is not None
        return model_arrays(arrays)[0]

    def asked(self, phase: str = "") -> list[int]:
        """Return the sites that got a message, in order."""
        return [e.partition for e in self.grid.exchanges if e.phase == phase]

    def is_mean_of(self, places: list[int], model: np.ndarray) -> None:
        """Return whether the new model is the mean of these sites' models."""
        ends = [model_of(reply)[0] for reply in self.replies(places)]
        assert len(ends) == len(places)
        np.testing.assert_allclose(model, np.mean(ends, axis=0), rtol=1e-12, atol=1e-12)

    def replies(self, places: list[int], phase: str = "") -> list[Message]:
        return [e.reply for e in self.grid.exchanges if e.phase == phase and e.partition in places]


def sampled(**more: Any) -> list[int]:
    """Return the sites that round 1 asks first."""
    one = Round(replace_dropped=False, **more)
    one.play()
    return one.asked()


def test_nobody_else_is_asked_by_default_or_where_all_answer() -> None:
    assert not parse_run_config({}).training.replace_dropped
    first = sampled()
    off = Round(failing({first[1]}), replace_dropped=False)
    off.play()
    assert off.asked() == off.strategy.report.asked == first
    assert off.strategy.report.answered == [first[0], *first[2:]]
    on = Round()
    on.play()
    assert on.asked() == on.strategy.report.asked == on.strategy.report.answered == first


@pytest.mark.parametrize(("failures", "how"), [(1, broken), (2, stale), (4, stale)])
def test_as_many_others_answer_as_failed(failures: int, how: Tamper) -> None:
    first = sampled()
    bad = set(first[:failures])
    one = Round(failing(bad, how=how))
    model = one.play()
    report, replacements = one.strategy.report, one.asked()[WANTED:]
    assert one.asked()[:WANTED] == first
    assert len(replacements) == failures
    assert not set(replacements) & set(first)
    assert replacements == sorted(set(replacements))
    assert report.asked == one.asked()
    assert report.answered == sorted({*first, *replacements} - bad)
    assert list(report.dropped) == sorted(bad)
    one.is_mean_of(report.answered, model)
    exchanges = one.grid.exchanges
    assert report.bytes_down == sum(count_bytes(e.message.content) for e in exchanges) == (WANTED + failures) * MODEL
    # an error has no content
    answers = [e.reply for e in exchanges if how is stale or e.partition not in bad]
    assert report.bytes_up == sum(count_bytes(reply.content) for reply in answers)


def test_a_reply_that_never_came_is_replaced() -> None:
    one = Round()
    messages = list(one.strategy.configure_train(1, one.model, ConfigRecord(), one.grid))
    replies = list(one.grid.send_and_receive(messages))
    first = one.asked()
    one.strategy.aggregate_train(1, replies[1:])
    assert one.strategy.report.dropped == {first[0]: "no answer"}
    assert len(one.strategy.report.answered) == WANTED
    assert len(one.asked()) == WANTED + 1


def test_replacements_that_fail_are_replaced_in_turn() -> None:
    """All unsampled sites fail, except the last to be asked."""
    first = sampled()
    others = sorted(set(range(CLIENTS)) - set(first))
    for good in others:
        bad = {first[0], *others} - {good}
        one = Round(failing(bad))
        one.play()
        asked = one.asked()
        assert one.strategy.report.asked == asked
        assert asked[-1] == good  # no site is asked after enough replies
        assert len(asked) == len(set(asked))
        assert one.strategy.report.answered == sorted([*first[1:], good])
        assert list(one.strategy.report.dropped) == sorted(bad & set(asked))


def test_when_nobody_is_left_the_average_is_over_those_who_answered() -> None:
    good = {1, 6}
    bad = set(range(CLIENTS)) - good
    one = Round(failing(bad))
    model = one.play()
    assert sorted(one.asked()) == list(range(CLIENTS))
    assert one.strategy.report.answered == sorted(good)
    assert one.strategy.report.dropped == dict.fromkeys(sorted(bad), "broke")
    one.is_mean_of(sorted(good), model)
    with pytest.raises(
        StrategyError, match="round 1: 2 of 8 clients sent a valid reply, .*=3 requires 3; partition 0: broke"
    ):
        Round(failing(bad), min_train_nodes=3).play()
    whole = Round(failing({3}), fraction_train=1.0)
    whole.play()
    assert whole.asked() == list(range(CLIENTS))


def replacements(server_rounds: range, seed: int = 0, lost: tuple[int, ...] = (0, 1)) -> list[tuple[int, ...]]:
    """Return the replacements of the same lost sites, by round; site 7 was asked with them and replies."""
    one = Round(seed=seed)
    one.strategy.prepare(one.model, one.grid)
    one.grid.tamper = failing(set(lost))
    found = []
    for server_round in server_rounds:
        one.grid.exchanges.clear()
        messages = one.strategy.messages(server_round, [*lost, 7], one.model, None)
        replies = one.strategy.receive(server_round, one.grid.send_and_receive(messages))
        found.append(tuple(one.asked()[len(lost) + 1 :]))
        assert [reply.client for reply in replies] == [*found[-1], 7]  # in order, regardless of arrival
    return found


def test_the_choice_is_the_seed_s_and_the_round_s() -> None:
    first = replacements(range(1, 9))
    assert replacements(range(1, 9)) == first
    assert replacements(range(5, 9)) == first[4:]
    assert replacements(range(1, 9), seed=1) != first
    assert len(set(first)) > 3


# An exchange that the strategy adds.

SGDA: dict[str, Any] = {"strategy": "fedsgda-mb"}


def gradient_clients() -> list[int]:
    one = Round(replace_dropped=False, **SGDA)
    one.play()
    return one.asked(GRADIENTS)


@pytest.mark.parametrize("failures", [1, 3])
def test_the_gradient_phase_replaces_for_itself(failures: int) -> None:
    first = gradient_clients()
    bad = set(first[:failures])
    one = Round(failing(bad, GRADIENTS), **SGDA)
    one.play()
    asked, report = one.asked(GRADIENTS), one.strategy.report
    assert asked[:WANTED] == first
    assert len(asked) == len(set(asked)) == WANTED + failures
    assert one.asked() == report.asked == sampled(**SGDA)  # the round's own exchange lost no site
    gradients = [
        LocalGradient.from_record(reply.content.config_records[PAYLOAD]).gradient
        for reply in one.replies(sorted(set(asked) - bad), GRADIENTS)
    ]
    assert len(gradients) == WANTED
    for exchange in one.grid.exchanges[-WANTED:]:
        down = FedSGDADown.from_record(exchange.message.content.config_records[PAYLOAD])
        np.testing.assert_allclose(down.estimate, np.mean(gradients, axis=0), rtol=1e-12, atol=1e-12)
    assert report.dropped == dict.fromkeys(sorted(bad), "gradients phase: broke")
    exchanges = one.grid.exchanges
    assert len(exchanges) == 2 * WANTED + failures
    assert report.bytes_down == sum(count_bytes(e.message.content) for e in exchanges)
    answers = [e.reply for e in exchanges if not (e.phase and e.partition in bad)]
    assert report.bytes_up == sum(count_bytes(reply.content) for reply in answers)


def test_a_site_that_fails_in_both_phases_has_both_reasons() -> None:
    both = sorted(set(gradient_clients()) & set(sampled(**SGDA)))
    assert both
    one = Round(failing(set(both)), **SGDA)
    one.play()
    assert {i: one.strategy.report.dropped[i] for i in both} == dict.fromkeys(both, "gradients phase: broke; broke")
