"""``replace-dropped``: another client is asked in the place of each that gave no good reply."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message

from apps.client_app import app as client_app
from apps.config import Scalar, parse_run_config
from apps.resources import federated_data, new_model
from apps.server_app import RunFailedError
from payloads.fedsgda import GRADIENTS, FedSGDADown, LocalGradient
from payloads.handshake import SiteReport
from payloads.settings import TrainingSettings
from payloads.wire import CONFIG, METRICS, PAYLOAD, PHASE, ROUND, count_bytes, model_arrays, model_record
from simulations.engine import task_identity
from strategies.base import PayloadStrategy
from strategies.local_sgd import LocalSGD
from strategies.roster import Roster, StrategyError
from tests.battery.federation import Exchange, Wiretap, federate, model_of

CLIENTS, WANTED = 8, 4
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


@pytest.fixture(autouse=True)
def _identity() -> Iterator[None]:
    with task_identity():
        yield


def phase_of(exchange: Exchange) -> str:
    return str(exchange.message.content.config_records[CONFIG].get(PHASE, ""))


def broken(exchange: Exchange) -> Message:
    return Message(Error(2, "broke"), reply_to=exchange.message)


def stale(exchange: Exchange) -> Message:
    """A reply with content, of another round."""
    exchange.reply.content.metric_records[METRICS][ROUND] = 99
    return exchange.reply


def failing(partitions: set[int], phase: str | None = None, how: Tamper = broken) -> Tamper:
    """These sites fail in every exchange, or in those of one phase; nobody may be asked twice in one."""
    seen: set[tuple[int, str, int]] = set()

    def tamper(exchange: Exchange) -> Message:
        key = (exchange.server_round, phase_of(exchange), exchange.partition)
        assert key not in seen
        seen.add(key)
        fails = exchange.partition in partitions and phase in (None, phase_of(exchange))
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
        """The new model."""
        self.grid.exchanges.clear()
        messages = list(self.strategy.configure_train(server_round, self.model, ConfigRecord(), self.grid))
        arrays, _ = self.strategy.aggregate_train(server_round, self.grid.send_and_receive(messages))
        assert arrays is not None
        return model_arrays(arrays)[0]

    def asked(self, phase: str = "") -> list[int]:
        """Who got a message, in order."""
        return [e.partition for e in self.grid.exchanges if phase_of(e) == phase]

    def replies(self, places: list[int], phase: str = "") -> list[Message]:
        return [e.reply for e in self.grid.exchanges if phase_of(e) == phase and e.partition in places]


def sampled(**more: Any) -> list[int]:
    """Whom round 1 asks at first."""
    one = Round(replace_dropped=False, **more)
    one.play()
    return one.asked()


def test_it_is_off_by_default() -> None:
    assert not TrainingSettings().replace_dropped
    assert not parse_run_config({}).training.replace_dropped
    first = sampled()
    one = Round(failing({first[1]}), replace_dropped=False)
    one.play()
    assert one.asked() == one.strategy.report.asked == first
    assert one.strategy.report.answered == [first[0], *first[2:]]


def test_nobody_else_is_asked_where_all_answer() -> None:
    one = Round()
    one.play()
    assert one.asked() == one.strategy.report.asked == one.strategy.report.answered == sampled()


@pytest.mark.parametrize("how", [broken, stale])
@pytest.mark.parametrize("failures", [1, 2, 4])
def test_as_many_others_answer_as_failed(failures: int, how: Tamper) -> None:
    first = sampled()
    bad = set(first[:failures])
    one = Round(failing(bad, how=how))
    model = one.play()
    report, others = one.strategy.report, set(range(CLIENTS)) - set(first)
    replacements = one.asked()[WANTED:]
    assert one.asked()[:WANTED] == first
    assert len(replacements) == len(set(replacements)) == failures
    assert set(replacements) <= others
    assert replacements == sorted(replacements)
    assert report.asked == one.asked()
    assert report.answered == sorted({*first, *replacements} - bad)
    assert list(report.dropped) == sorted(bad)
    ends = [model_of(reply)[0] for reply in one.replies(report.answered)]
    assert len(ends) == WANTED
    np.testing.assert_allclose(model, np.mean(ends, axis=0), rtol=1e-12, atol=1e-12)


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
    """All but the last to be asked fail among those who were not sampled."""
    first = sampled()
    others = sorted(set(range(CLIENTS)) - set(first))
    for good in others:
        bad = {first[0], *others} - {good}
        one = Round(failing(bad))
        one.play()
        asked = one.asked()
        assert one.strategy.report.asked == asked
        assert asked[-1] == good  # nobody is asked once there are enough
        assert len(asked) == len(set(asked))
        assert one.strategy.report.answered == sorted([*first[1:], good])
        assert list(one.strategy.report.dropped) == sorted(bad & set(asked))


def test_when_nobody_is_left_the_average_is_over_those_who_answered() -> None:
    good = {1, 6}
    one = Round(failing(set(range(CLIENTS)) - good))
    model = one.play()
    assert sorted(one.asked()) == list(range(CLIENTS))
    assert one.strategy.report.answered == sorted(good)
    assert one.strategy.report.dropped == {i: "broke" for i in range(CLIENTS) if i not in good}
    ends = [model_of(reply)[0] for reply in one.replies(sorted(good))]
    np.testing.assert_allclose(model, np.mean(ends, axis=0), rtol=1e-12, atol=1e-12)


def test_too_few_of_all_end_the_round() -> None:
    one = Round(failing(set(range(CLIENTS)) - {1, 6}), min_train_nodes=3)
    with pytest.raises(StrategyError, match="round 1: 2 good replies of 8, min-train-nodes is 3; partition 0: broke"):
        one.play()


def test_replacements_keep_a_round_alive() -> None:
    first = sampled()
    with pytest.raises(StrategyError, match="round 1: 1 good replies of 4, min-train-nodes is 3"):
        Round(failing(set(first[1:])), min_train_nodes=3, replace_dropped=False).play()
    one = Round(failing(set(first[1:])), min_train_nodes=3)
    one.play()
    assert len(one.strategy.report.answered) == WANTED


def test_with_all_clients_there_is_nobody_to_ask() -> None:
    one = Round(failing({3}), fraction_train=1.0)
    one.play()
    assert one.asked() == list(range(CLIENTS))
    assert one.strategy.report.answered == [0, 1, 2, 4, 5, 6, 7]


def test_bytes_include_replacements_and_replaced() -> None:
    first = sampled()
    one = Round(failing(set(first[:2]), how=stale))
    one.play()
    exchanges = one.grid.exchanges
    assert len(exchanges) == WANTED + 2
    model = 31 * 8  # thirty weights and a bias
    assert one.strategy.report.bytes_down == sum(count_bytes(e.message.content) for e in exchanges) == 6 * model
    assert one.strategy.report.bytes_up == sum(count_bytes(e.reply.content) for e in exchanges) == 6 * model


def test_replacements_get_the_round_s_message() -> None:
    first = sampled(strategy="fedx2")
    one = Round(failing({first[0]}), strategy="fedx2")
    one.play()
    own = [e.message.content for e in one.grid.exchanges if e.server_round == 1]
    assert len(own) == WANTED + 1
    assert len({model_arrays(content.array_records["arrays"])[0].tobytes() for content in own}) == 1
    assert len({str(sorted(content.config_records[PAYLOAD].items())) for content in own}) == 1


def replacements(server_rounds: range, seed: int = 0, lost: tuple[int, ...] = (0, 1)) -> list[tuple[int, ...]]:
    """Who is asked in the place of the same lost sites, by round; site 7 was asked with them and answers."""
    one = Round(seed=seed)
    one.strategy.prepare(one.model, one.grid)
    one.grid.tamper = failing(set(lost))
    found = []
    for server_round in server_rounds:
        one.grid.exchanges.clear()
        messages = one.strategy.messages(server_round, [*lost, 7], one.model, None)
        replies = one.strategy.receive(server_round, one.grid.send_and_receive(messages))
        found.append(tuple(one.asked()[len(lost) + 1 :]))
        assert [reply.place for reply in replies] == [*found[-1], 7]  # in order, whenever they came
    return found


def test_the_choice_is_the_seed_s_and_the_round_s() -> None:
    first = replacements(range(1, 9))
    assert replacements(range(1, 9)) == first
    assert replacements(range(5, 9)) == first[4:]
    assert replacements(range(1, 9), seed=1) != first
    assert len(set(first)) > 3


def test_the_choice_reaches_everyone() -> None:
    assert {place for (place,) in replacements(range(1, 40), lost=(3,))} == {0, 1, 2, 4, 5, 6}


def test_a_good_reply_after_a_bad_one_counts() -> None:
    """Nobody is asked in its place, and it is not among the dropped."""
    one = Round()
    messages = list(one.strategy.configure_train(1, one.model, ConfigRecord(), one.grid))
    replies = list(one.grid.send_and_receive(messages))
    bad = Message(Error(2, "broke"), reply_to=messages[0])
    assert len(one.strategy.receive(1, [bad, *replies])) == WANTED
    assert one.strategy.report.dropped == {}
    assert len(one.asked()) == WANTED


def test_without_a_grid_nobody_can_be_asked() -> None:
    """A strategy driven by hand."""
    one = Round()
    messages = list(one.strategy.configure_train(1, one.model, ConfigRecord(), one.grid))
    replies = list(one.grid.send_and_receive(messages))
    one.strategy._grid = None
    assert len(one.strategy.receive(1, replies[1:])) == WANTED - 1


def test_a_strategy_without_a_grid_drops() -> None:
    strategy = LocalSGD(TrainingSettings(replace_dropped=True))
    reports = tuple(SiteReport(identity=np.array([i, 3]), class_counts=np.array([2, 2])) for i in range(3))
    strategy.roster = Roster((1, 2, 3), reports)
    strategy._model = [np.zeros(2)]
    messages = strategy.messages(1, [0, 1], model_record([np.zeros(2)]), None)
    for number, message in enumerate(messages):
        message.metadata.__dict__["_message_id"] = f"message-{number}"
    with pytest.raises(StrategyError, match="round 1: 0 good replies of 2"):
        strategy.receive(1, [])


# An exchange of the strategy's own.

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
    asked, own = one.asked(GRADIENTS), sampled(**SGDA)
    assert asked[:WANTED] == first
    assert len(asked) == len(set(asked)) == WANTED + failures
    assert one.asked() == one.strategy.report.asked == own  # the round's own exchange lost nobody
    good = sorted(set(asked) - bad)
    gradients = [
        LocalGradient.from_record(reply.content.config_records[PAYLOAD]).gradient
        for reply in one.replies(good, GRADIENTS)
    ]
    assert len(gradients) == WANTED
    sent = [FedSGDADown.from_record(e.message.content.config_records[PAYLOAD]) for e in one.grid.exchanges[-WANTED:]]
    for down in sent:
        np.testing.assert_allclose(down.estimate, np.mean(gradients, axis=0), rtol=1e-12, atol=1e-12)
    assert one.strategy.report.dropped == dict.fromkeys(sorted(bad), "gradients phase: broke")
    exchanges = one.grid.exchanges
    assert len(exchanges) == 2 * WANTED + failures
    assert one.strategy.report.bytes_down == sum(count_bytes(e.message.content) for e in exchanges)
    # an error has no content
    answers = [e.reply for e in exchanges if not (phase_of(e) and e.partition in bad)]
    assert one.strategy.report.bytes_up == sum(count_bytes(reply.content) for reply in answers)


def test_the_two_phases_choose_for_themselves() -> None:
    """The same lost places are replaced by others in the two exchanges, in some round."""
    one = Round(**SGDA)
    roster = one.strategy.join(one.grid)
    one.strategy._grid = one.grid
    one.strategy._model = model_arrays(one.model)
    one.grid.tamper = failing({0, 1})
    differ = 0
    for server_round in range(1, 7):
        chosen = []
        for phase in ("", GRADIENTS):
            one.grid.exchanges.clear()
            down = FedSGDADown(class_counts=roster.class_counts.sum(axis=0), estimate=np.zeros(34))
            messages = one.strategy.messages(server_round, [0, 1], one.model, down, phase=phase)
            one.strategy.receive(server_round, one.grid.send_and_receive(messages))
            chosen.append(one.asked(phase)[2:])
        differ += chosen[0] != chosen[1]
    assert differ > 2


def test_a_site_that_fails_in_both_phases_has_both_reasons() -> None:
    both = sorted(set(gradient_clients()) & set(sampled(**SGDA)))
    assert both
    one = Round(failing(set(both)), **SGDA)
    one.play()
    assert {i: one.strategy.report.dropped[i] for i in both} == dict.fromkeys(both, "gradients phase: broke; broke")


# Whole runs.


def thirty_percent(seed: int) -> Tamper:
    rng = np.random.default_rng(seed)
    return lambda exchange: broken(exchange) if rng.random() < 0.3 else exchange.reply


@pytest.mark.parametrize("strategy", ["local-sgd", "fedx2", "fedsgda-storm", "fedsgda-svrg"])
def test_two_runs_with_the_same_losses_are_equal(strategy: str, tmp_path: Path) -> None:
    keys = {**KEYS, "strategy": strategy, "num-server-rounds": 10, "fedsgda.period": 3, "evaluate-every": 5}
    runs = [federate(tmp_path / str(i), keys, CLIENTS, thirty_percent(5))[0] for i in range(2)]
    assert runs[0].untimed == runs[1].untimed
    assert runs[0].model_bytes == runs[1].model_bytes
    assert np.isfinite(runs[0].numbers()).all()
    lines = runs[0].lines[1:]
    assert [line["clients_answered"] for line in lines] == [WANTED] * 10
    assert sum(line["clients_asked"] for line in lines) > 10 * WANTED
    assert all(line["clients_asked"] >= line["clients_answered"] for line in lines)


def test_a_run_with_nobody_left_fails_by_name(tmp_path: Path) -> None:
    keys = {**KEYS, "strategy": "fedsgda-mb"}
    with pytest.raises(RunFailedError, match="round 1: 0 good replies of 8, .* partition 0: gradients phase: broke"):
        federate(tmp_path / "run", keys, CLIENTS, failing(set(range(CLIENTS)), GRADIENTS))
