"""Tests of ``max-retries``: a strategy that needs every client asks a client without a good reply again.

A lost round leaves no trace. A client that stays away ends the run by name, with its last good round saved.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MessageType

from apps.client_app import app as client_app
from apps.config import Scalar, parse_run_config
from apps.registry import ALGORITHMS
from apps.server_app import RunFailedError
from apps.server_app import app as server_app
from apps.sites.files import read_tensors
from apps.sites.resources import federated_data, new_model
from methods.composite import CorrectionState
from methods.penalised import SMOOTHNESS, Smoothness
from payloads.wire import CONFIG, METRICS, PAYLOAD, PHASE, ROUND, count_bytes, model_record
from simulations.engines.grid import FIRST_NODE_ID, error_reply
from strategies.rounds.errors import StrategyError
from tests.algorithms.test_composite import DIM, KEYS, Played, Recorder, hand, make, save_sites
from tests.battery.federation import Exchange, Run, flat_config, model_of, serve
from tests.reference.minimax import Array

SITES, ROUNDS, VECTOR = 4, 6, (DIM + 1) * 8
NEVER_RAN, REPLY_LOST, SILENCE = "the client never ran", "its reply was lost", "no answer"
# (round, partition, phase, attempt from 1) -> one of these faults, or "" for a good reply
Fate = Callable[[int, int, str, int], str]


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Scalar]:
    return {**save_sites(tmp_path / "data.npz"), "batch-size": 4, "num-server-rounds": ROUNDS}


class Lossy(Recorder):
    """A grid on which messages fail on their way to a client or back."""

    def __init__(self, *args: Any, fate: Fate, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fate = fate
        self.attempts: list[tuple[int, str, int]] = []  # round, phase and partition of each train message
        self.fates: list[str] = []
        self.silent: list[str] = []

    def pull_messages(self, message_ids: Any) -> list[Message]:
        return super().pull_messages([i for i in message_ids if i not in self.silent])

    def _answer(self, message: Message) -> Message:
        if message.metadata.message_type != MessageType.TRAIN:
            return super()._answer(message)
        config = message.content.config_records[CONFIG]
        key = int(config[ROUND]), str(config.get(PHASE, "")), message.metadata.dst_node_id - FIRST_NODE_ID
        self.attempts.append(key)
        fate = self.fate(key[0], key[2], key[1], self.attempts.count(key))
        self.fates.append(fate)
        if fate == NEVER_RAN:
            return error_reply(2, fate, message)
        if fate == SILENCE:
            self.silent.append(message.metadata.message_id)
        reply = super()._answer(message)
        return error_reply(3, fate, message) if fate == REPLY_LOST else reply


def play(folder: Path, flat: dict[str, Scalar], fate: Fate = lambda *where: "", **options: Any) -> Played:
    return Played(folder, {**flat}, SITES, grid=Lossy, fate=fate, **options)


def only(server_round: int, partition: int, how: str, times: int = 10**6, phase: str = "") -> Fate:
    """Return faults of one client in one exchange, for the first attempts."""
    where = (server_round, partition, phase)
    return lambda r, i, name, attempt: how if (r, i, name) == where and attempt <= times else ""


def twenty_percent(seed: int) -> Fate:
    rng = np.random.default_rng(seed)
    return lambda *where: str(rng.choice([NEVER_RAN, REPLY_LOST])) if rng.random() < 0.2 else ""


def x_bars(one: Played) -> list[bytes]:
    """Return the x-bar that the clients got in each round, retries included."""
    assert all(len({model.tobytes() for model in models_of(one, r)}) == 1 for r in range(1, one.rounds + 1))
    return [model.tobytes() for model in one.sent]


def models_of(one: Played, server_round: int) -> list[Array]:
    return [model_of(exchange.message)[0] for exchange in one.exchanges(server_round)]


def states(one: Played) -> dict[tuple[int, int], tuple[bytes, ...]]:
    """Return every client's state after every round."""
    return {
        where: tuple(array.tobytes() for array in CorrectionState.from_record(state).arrays().values())
        for where, state in one.grid.states.items()
    }


def untouched(lossy: Played, whole: Played) -> None:
    """Require the sent models, kept states and last model of the run without a fault."""
    assert x_bars(lossy) == x_bars(whole)
    assert states(lossy) == states(whole)
    assert lossy.run.model_bytes == whole.run.model_bytes


# A fault leaves no trace.


@pytest.mark.parametrize(("dtype", "seed"), [("float64", 0), ("float32", 1)])
def test_random_faults_change_nothing(dtype: str, seed: int, data: dict[str, Scalar], tmp_path: Path) -> None:
    flat: dict[str, Scalar] = {**data, "dtype": dtype, "num-server-rounds": 12, "max-retries": 20}
    whole, lossy = play(tmp_path, flat), play(tmp_path, flat, twenty_percent(seed))
    assert min(lossy.grid.fates.count(how) for how in (NEVER_RAN, REPLY_LOST)) >= 3
    assert len(lossy.grid.attempts) > len(whole.grid.attempts) == SITES * 13
    untouched(lossy, whole)
    assert len(states(whole)) == SITES * 12
    for line, other in zip(lossy.run.lines, whole.run.lines, strict=True):
        assert line["dropped"] == {}
        assert {k: line[k] for k in ("objective", "optimality")} == {k: other[k] for k in ("objective", "optimality")}


@pytest.mark.parametrize(("how", "server_round"), [(NEVER_RAN, 1), (REPLY_LOST, 2), (SILENCE, 2), (SILENCE, ROUNDS)])
def test_a_fault_of_either_kind_in_any_round(
    how: str, server_round: int, data: dict[str, Scalar], tmp_path: Path
) -> None:
    """Three retries are the default; they take precedence over replacement."""
    whole = play(tmp_path, data)
    lossy = play(tmp_path, {**data, "replace-dropped": True}, only(server_round, 2, how, times=3))
    assert [lossy.grid.attempts.count((server_round, "", i)) for i in range(SITES)] == [1, 1, 4, 1]
    untouched(lossy, whole)


def test_the_replies_of_a_retried_round_are_in_order(data: dict[str, Scalar], tmp_path: Path) -> None:
    """All clients fail at first, each a different number of times."""
    fate: Fate = lambda r, i, phase, attempt: REPLY_LOST if r == 3 and attempt <= 3 - i else ""  # noqa: E731
    whole, lossy = play(tmp_path, data), play(tmp_path, data, fate)
    asked = [i for r, phase, i in lossy.grid.attempts if r == 3]
    assert asked == [0, 1, 2, 3, 0, 1, 2, 0, 1, 0]  # never a client that has replied
    assert lossy.run.model_bytes == whole.run.model_bytes


def test_the_bytes_of_a_retried_round(data: dict[str, Scalar], tmp_path: Path) -> None:
    """Every message and every reply with content counts, and no client was dropped."""
    seen: list[Exchange] = []

    def tamper(exchange: Exchange) -> Message:
        seen.append(exchange)
        asked = [e for e in seen if (e.server_round, e.partition) == (2, 1)]
        if asked == [exchange]:
            exchange.reply.content.metric_records[METRICS][ROUND] = 99  # content of another round
        return exchange.reply

    one = play(tmp_path, data, only(4, 3, REPLY_LOST, times=2), tamper=tamper)
    down, up = ([line[key] // VECTOR for line in one.run.lines[1:]] for key in ("bytes_down", "bytes_up"))
    assert down == [4, 4 + 1, 4, 4 + 2, 4, 4]
    assert up == [4, 4 + 1, 4, 4, 4, 4]  # an error has no content
    assert [(line["clients_asked"], line["clients_answered"]) for line in one.run.lines[1:]] == [(SITES, SITES)] * 6
    assert [line["dropped"] for line in one.run.lines] == [{}] * (ROUNDS + 1)
    assert one.run.result["bytes_down"] == sum(line["bytes_down"] for line in one.run.lines)
    for r in (2, 4):
        messages = [exchange.message.content for exchange in one.exchanges(r)]
        assert one.run.lines[r]["bytes_down"] == sum(map(count_bytes, messages))


# A client that stays away.


def refusal(how: str, server_round: int, partition: int, retries: int = 3, where: str = "") -> str:
    return (
        f"round {server_round}: partition {partition} sent no valid reply (max-retries={retries}): {where}{how}; "
        "Composite keeps corrections that add up to zero only over all clients"
    )


@pytest.mark.parametrize(("how", "retries"), [(NEVER_RAN, 0), (REPLY_LOST, 1), (SILENCE, 3)])
def test_after_max_retries_the_run_ends_by_name(
    retries: int, how: str, data: dict[str, Scalar], tmp_path: Path
) -> None:
    """The error has the reason of the last attempt; the run survives one fault fewer."""
    flat = {**data, "max-retries": retries, "checkpoint-every": 0}

    def fate(r: int, i: int, phase: str, attempt: int) -> str:
        return "" if (r, i) != (3, 2) else how if attempt > retries else REPLY_LOST

    with pytest.raises(RunFailedError) as failed:
        play(tmp_path, flat, fate)
    assert str(failed.value) == refusal(how, 3, 2, retries)
    path = tmp_path / "run-0"
    assert json.loads((path / "failure.json").read_text("utf-8"))["reason"] == str(failed.value)
    assert [line["round"] for line in Run(path).lines] == [0, 1, 2]
    assert not (path / "model.safetensors").exists()
    assert not (path / "checkpoints").exists()
    play(tmp_path, flat, only(3, 2, how, times=retries))


def test_a_client_is_asked_once_and_max_retries_times_more(data: dict[str, Scalar], tmp_path: Path) -> None:
    for retries in (0, 2):
        play(tmp_path, {**data, "max-retries": retries}, only(2, 0, NEVER_RAN, times=retries))
        with pytest.raises(RunFailedError):
            play(tmp_path, {**data, "max-retries": retries}, only(2, 0, NEVER_RAN, times=retries + 1))


def test_the_last_good_round_is_saved_and_the_run_goes_on_from_it(data: dict[str, Scalar], tmp_path: Path) -> None:
    """The checkpoint of round 3 is made when round 4 fails: regular checkpoints come every 10 rounds."""
    flat: dict[str, Scalar] = {**data, "checkpoint-every": 10}
    whole = play(tmp_path, flat)
    with pytest.raises(RunFailedError, match="round 4: partition 1"):
        play(tmp_path, flat, only(4, 1, REPLY_LOST))
    path = tmp_path / "run-1"
    (saved,) = (path / "checkpoints").iterdir()
    assert saved.name == "round-000003.safetensors"
    # x-bar, as sent in round 4
    np.testing.assert_array_equal(read_tensors(saved)[0]["model.parameters"], whole.sent[3])

    again = {**flat, "resume": True, "run-name": "run-1"}
    with pytest.raises(RunFailedError, match="round 4: partition 1"):  # again, in the first round of the resumed run
        resume(path, again, only(4, 1, NEVER_RAN))
    assert [*(path / "checkpoints").iterdir()] == [saved]
    resume(path, again, only(5, 0, REPLY_LOST, times=2))
    assert Run(path).model_bytes == whole.run.model_bytes
    untold = ("bytes_down", "seconds", "server_seconds")
    left, right = (
        [{k: v for k, v in line.items() if k not in untold} for line in run.lines] for run in (Run(path), whole.run)
    )
    assert left == right
    assert not (path / "failure.json").exists()


def resume(path: Path, flat: dict[str, Scalar], fate: Fate) -> None:
    """Continue a run from its directory."""
    config = flat_config(path, {**KEYS, **flat})
    serve(Lossy(client_app, SITES, config, fate=fate), server_app, config)


def test_a_first_round_that_fails_leaves_nothing_to_go_on_from(data: dict[str, Scalar], tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match="round 1: partition 1"):
        play(tmp_path, {**data, "checkpoint-every": 2}, only(1, 1, REPLY_LOST))
    assert not (tmp_path / "run-0" / "checkpoints").exists()


def test_every_strategy_s_last_good_round_is_saved(data: dict[str, Scalar], tmp_path: Path) -> None:
    """This includes strategies without retries: too few replies end any run."""
    with pytest.raises(
        RunFailedError, match="round 3: 3 of 4 clients sent a valid reply, but min-train-nodes=4 requires 4"
    ):
        play(
            tmp_path, {**data, "strategy": "fedda", "min-train-nodes": 4, "checkpoint-every": 10}, only(3, 0, NEVER_RAN)
        )
    assert [file.stem for file in (tmp_path / "run-0" / "checkpoints").iterdir()] == ["round-000002"]


# A client that lost its state.


@pytest.mark.parametrize(("kept", "asked"), [(1, 3), (2, 4), (4, 2), (4, 3)])
def test_a_record_of_another_round_is_none(kept: int, asked: int) -> None:
    """Neither the previous round nor the same round: the correction is 0, as in the first round."""
    client = hand(make((12,)), {"penalty": "l1", "weight": 0.05}).clients[0]
    point = np.zeros(DIM)
    for server_round in range(1, kept + 1):
        client.fit([point], {"server-round": server_round})
    client.fit([point], {"server-round": asked})
    assert not client.state.correction.any()
    client.fit([point], {"server-round": asked + 1})
    assert client.state.correction.all()


# The exchange before round 1.


def test_the_smoothness_exchange_is_retried_too(data: dict[str, Scalar], tmp_path: Path) -> None:
    whole = play(tmp_path, data)
    lossy = play(tmp_path, data, only(0, 2, REPLY_LOST, times=3, phase=SMOOTHNESS))
    assert lossy.grid.attempts[: SITES + 3] == [(0, SMOOTHNESS, i) for i in (0, 1, 2, 3, 2, 2, 2)]
    assert lossy.run.lines[0]["bytes_down"] - whole.run.lines[0]["bytes_down"] == 3 * VECTOR
    assert lossy.run.lines[0]["bytes_up"] == whole.run.lines[0]["bytes_up"]
    assert lossy.run.lines[0]["dropped"] == {}
    assert lossy.run.model_bytes == whole.run.model_bytes
    with pytest.raises(RunFailedError) as failed:
        play(tmp_path, {**data, "max-retries": 2}, only(0, 2, NEVER_RAN, phase=SMOOTHNESS))
    assert str(failed.value) == refusal(NEVER_RAN, 0, 2, 2, f"{SMOOTHNESS} phase: ")

    bad = []

    def tamper(exchange: Exchange) -> Message:
        if exchange.phase and exchange.partition == 0 and not bad:
            bad.append(exchange)
            exchange.reply.content[PAYLOAD] = Smoothness(estimate=np.array([np.nan])).to_record()
        return exchange.reply

    one = play(tmp_path, data, tamper=tamper)
    assert one.grid.attempts.count((0, SMOOTHNESS, 0)) == 2  # an impossible estimate is requested again


# Strategies with retries.


def test_composite_and_newton_ask_again(data: dict[str, Scalar], tmp_path: Path) -> None:
    """A strategy with retries needs all clients, so no replacement exists."""
    retrying = [row for row in ALGORITHMS.values() if row.traits.retries_failed]
    assert all(row.traits.needs_all_clients for row in retrying)
    assert [row.strategy.__name__ for row in retrying if row.strategy.shares_model] == ["Composite", "Newton"]
    one = play(tmp_path, {**data, "strategy": "fedmid"}, only(2, 1, NEVER_RAN))
    assert one.grid.attempts.count((2, "", 1)) == 1
    assert one.run.lines[2]["dropped"] == {"1": NEVER_RAN}
    assert one.run.lines[2]["clients_answered"] == SITES - 1


def test_without_a_grid_a_missing_reply_ends_the_round(data: dict[str, Scalar], tmp_path: Path) -> None:
    """The strategy is driven by other code, which could not ask again."""
    flat = flat_config(tmp_path / "run", {**KEYS, **data})
    config = parse_run_config(flat)
    grid = Lossy(client_app, SITES, flat, fate=lambda *where: "")
    strategy = config.algorithm.strategy(config.training, config.family)
    model = model_record(new_model(config, federated_data(config.data, SITES).input_shape).arrays())
    messages = list(strategy.configure_train(1, model, ConfigRecord(), grid))
    replies = list(grid.send_and_receive(messages))
    assert strategy.exchange is not None
    strategy.exchange.grid = None
    with pytest.raises(StrategyError, match="round 1: partition 3 sent no valid reply .* no answer; Composite"):
        strategy.receive(1, replies[:3])


def test_a_retry_waits_for_the_site(data: dict[str, Scalar], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr("strategies.rounds.exchange.time.sleep", lambda seconds: naps.append(seconds))
    one = play(tmp_path, {**data, "retry-wait": 31.5}, only(2, 1, NEVER_RAN, times=2))
    assert [seconds for seconds in naps if seconds > 1] == [31.5, 31.5]
    # the sites wait, not the server
    assert one.run.lines[2]["server_seconds"] < one.run.lines[2]["seconds"] - 62
