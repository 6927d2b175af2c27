"""Vertical runs in which a party fails, and vertical runs that are continued."""

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Error, Message, RecordDict

from apps.client_app import app as client_app
from apps.config import Scalar
from apps.server_app import app as server_app
from simulations.engines.grid import FIRST_NODE_ID
from tests.apps.vertical_runs import KEYS, PARTIES, play
from tests.battery.federation import Exchange, Run, Wiretap, federate, flat_config, serve


def test_parties_that_had_finished_go_back(tmp_path: Path) -> None:
    """If a reply is lost, its sender and the other parties have already finished the segment."""
    config: dict[str, Scalar] = {**KEYS, "strategy": "vfb2-saga"}
    whole, _ = federate(tmp_path / "whole", config, clients=3)
    lost: list[int] = []

    def tamper(exchange: Exchange) -> Message:
        if exchange.server_round == 2 and exchange.partition == 1 and not lost:
            lost.append(1)
            del exchange.reply.content["metrics"]
        return exchange.reply

    run, _ = federate(tmp_path / "run", config, clients=3, tamper=tamper)
    assert lost
    assert run.model_bytes == whole.model_bytes


def test_a_party_that_lost_its_memory_goes_on_from_its_files(tmp_path: Path) -> None:
    """After a restart of its node, it takes weights from the state-dir and a new certificate with the next attempt."""
    whole, _ = play(tmp_path / "whole", {"checkpoint-every": 3})
    flat = flat_config(tmp_path / "run", {**KEYS, "checkpoint-every": 3, "vfb2.join-timeout": 2.0})
    forgotten: list[int] = []

    def forget(exchange: Exchange) -> Message:
        if exchange.server_round == 1 and exchange.partition == 2:
            forgotten.append(1)
            grid._contexts[FIRST_NODE_ID + 2].state = RecordDict()
        return exchange.reply

    grid = Wiretap(client_app, PARTIES, flat, tamper=forget)
    serve(grid, server_app, flat)
    grid.close()
    assert forgotten
    assert Run(tmp_path / "run").model_bytes == whole.model_bytes


def test_a_party_that_hangs_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The party is not asked again, since it may still have its message."""

    class Deaf(Wiretap):
        """A grid that loses the replies of party 1 in round 2."""

        pull_interval = 0.001

        def pull_messages(self, message_ids: Any) -> list[Message]:
            heard = super().pull_messages(message_ids)
            deaf = bool(self.exchanges) and self.exchanges[-1].server_round == 2
            return [reply for reply in heard if not deaf or reply.metadata.src_node_id != FIRST_NODE_ID + 1]

    def tamper(exchange: Exchange) -> Message:
        if exchange.server_round == 2 and exchange.partition != 1:
            return Message(Error(2, "<class 'RuntimeError'>:<'party 1: it is silent'>"), reply_to=exchange.message)
        return exchange.reply

    flat = flat_config(tmp_path / "run", KEYS)
    grid = Deaf(client_app, PARTIES, flat, tamper=tamper)
    monkeypatch.setattr("strategies.vertical.strategy.PATIENCE", 0.05)
    with pytest.raises(RuntimeError, match="round 2: partition 1 .*no answer; other parties report: it is silent"):
        serve(grid, server_app, flat)
    grid.close()
    assert sum(e.server_round == 2 and not e.phase for e in grid.exchanges) == PARTIES


def test_a_resumed_run_needs_the_parties_states(tmp_path: Path) -> None:
    run, _ = play(tmp_path / "run", {"checkpoint-every": 3})
    for file in (run.path / "client-state").rglob("*.safetensors"):
        file.unlink()
    told = "segment 4 starts from the weights after segment 3, but this party has no weights"
    with pytest.raises(RuntimeError, match=told):
        play(run.path, {"checkpoint-every": 3, "resume": True, "num-server-rounds": 4, "max-retries": 0})


def test_a_finished_run_that_is_resumed_keeps_its_model(tmp_path: Path) -> None:
    run, _ = play(tmp_path / "run", {"checkpoint-every": 2})
    before = run.model_bytes
    again, _ = play(run.path, {"checkpoint-every": 2, "resume": True})
    assert again.model_bytes == before
