"""The process that stays at a site between messages."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict

from apps.resident import _portable, is_last, longest_wait
from apps.server_app import app as server_app
from apps.site_app import app
from apps.sites.staying import _socket_of, ask, staying_seconds
from payloads.handshake import REFUSAL
from payloads.wire import CONFIG, ROUND
from simulations.engines.grid import run_on, task_identity
from simulations.engines.in_process import InProcessGrid
from tests.battery.federation import Run, federate, flat_config

CLIENTS = 2


def staying(path: Path) -> list[int]:
    """Return the resident processes of nodes whose node configs name a path."""
    found = []
    for entry in filter(lambda entry: entry.name.isdigit(), Path("/proc").iterdir()):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            mine = str(path).encode() in (entry / "environ").read_bytes()
        except OSError:  # it has ended, or belongs to another user
            continue
        if mine and b"apps.resident" in words:
            found.append(int(entry.name))
    return found


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def context_of(path: Path, node_id: int = 1) -> Context:
    node = {"partition-id": 0, "num-partitions": 1, "stay": 60}
    return Context(1, node_id, node, RecordDict(), flat_config(path, {"strategy": "local-sgd"}))


def test_another_time_is_another_process(tmp_path: Path) -> None:
    assert _socket_of(context_of(tmp_path), 60) == _socket_of(context_of(tmp_path), 60)
    assert _socket_of(context_of(tmp_path), 60) != _socket_of(context_of(tmp_path), 5)


@pytest.mark.slow
@pytest.mark.gate
def test_a_process_stays_with_the_memory_of_its_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process for each node; the run's bytes do not change, and idle processes end."""
    monkeypatch.setenv("MADE_FOR", str(tmp_path))
    config = flat_config(tmp_path / "stays", {"strategy": "scaffold"})
    (tmp_path / "site.toml").write_text("[process]\nstay = 20")
    grid = InProcessGrid(app, CLIENTS, config, [{"site-config": str(tmp_path / "site.toml")}] * CLIENTS)
    with task_identity():
        run_on(grid, server_app, config)
    assert len(staying(tmp_path)) == CLIENTS
    run, alone = Run(tmp_path / "stays"), federate(tmp_path / "alone", {"strategy": "scaffold"}, CLIENTS)[0]
    assert (run.untimed, run.model_bytes) == (alone.untimed, alone.model_bytes)
    until(lambda: not staying(tmp_path))


def test_what_a_client_app_raises_and_what_kills_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MADE_FOR", str(tmp_path))
    with task_identity():
        message = Message(RecordDict({CONFIG: ConfigRecord({"round": 1})}), 1, MessageType.TRAIN)
        context = context_of(tmp_path / "run", node_id=hash(str(tmp_path)))
        before = context.state
        with pytest.raises(Exception, match="arrays") as raised:
            ask(message, context, 60)
        assert context.state is not before
        with pytest.raises(type(raised.value)):
            app(message, context)
        (first,) = staying(tmp_path)
        os.kill(first, signal.SIGKILL)
        until(lambda: not staying(tmp_path))
        with pytest.raises(type(raised.value)):
            app(message, context)
        (second,) = staying(tmp_path)
    assert second != first
    os.kill(second, signal.SIGKILL)


def test_an_error_that_cannot_be_sent_keeps_its_words() -> None:
    class OfTwoError(Exception):
        def __init__(self, one: str, two: str) -> None:
            super().__init__(f"{one} and {two}")

    assert str(_portable(OfTwoError("this", "that"))) == "OfTwoError: this and that"
    assert isinstance(_portable(KeyError("x")), KeyError)


@pytest.mark.parametrize("value", ["yes", -1, float("inf")])
def test_a_stay_that_is_none_is_refused(tmp_path: Path, value: object) -> None:
    assert staying_seconds({"stay": value}) == 0
    context = context_of(tmp_path)
    context.node_config["stay"] = value  # type: ignore[assignment]
    with task_identity():
        reply = app(Message(RecordDict(), 1, MessageType.QUERY), context)
    assert "node config: stay: change the site's settings (got" in str(reply.content.config_records[CONFIG][REFUSAL])


@pytest.mark.parametrize(
    ("seconds", "longest", "ending", "wait"),
    [(600, 0, False, 60), (600, 8, False, 60), (600, 100, False, 200), (600, 400, False, 600), (600, 400, True, 60)],
)
def test_a_process_ends_a_minute_after_its_run(seconds: float, longest: float, ending: bool, wait: float) -> None:
    assert longest_wait(seconds, longest, ending) == wait
    assert longest_wait(5, longest, ending) == 5  # the owner's limit


@pytest.mark.parametrize(("number", "last"), [(1, False), (2, True), (3, True), (None, False)])
def test_the_last_round_is_known_from_its_message(tmp_path: Path, number: int | None, last: bool) -> None:
    context = context_of(tmp_path)
    context.run_config["num-server-rounds"] = 2
    config = ConfigRecord({} if number is None else {ROUND: number})
    with task_identity():
        message = Message(RecordDict({CONFIG: config}), 1, MessageType.TRAIN)
        empty = Message(RecordDict(), 1, MessageType.QUERY)
    assert is_last(message, context) == last
    assert not is_last(empty, context)
