"""A site that lost its state is not mistaken for a new site: it starts again, and the run reports it.

If the states of all clients must add up, all clients start again.
"""

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, MessageType

from apps.client_app import app as client_app
from apps.config import Scalar
from apps.guards.memory import STATE
from apps.registry import ALGORITHMS
from apps.server_app import app as server_app
from methods.composite import CorrectionState
from methods.scaffold import ControlChange, ControlVariate
from payloads.wire import CONFIG, METRICS, PAYLOAD, ROUND, STATE_ROUND, STATE_SINCE
from simulations.engines.grid import FIRST_NODE_ID
from tests.battery.federation import Exchange, Run, Wiretap, federate, flat_config, save_npz, serve

CLIENTS, ROUNDS, LOST_AFTER, LOSER = 3, 6, 2, 1
# Their clients keep a state. A vertical party that has lost its block ends the run, see test_vertical_failures.
KEEPING = [n for n, row in ALGORITHMS.items() if row.client.memory is not None and row.strategy.shares_model]
JOINT = [name for name in KEEPING if ALGORITHMS[name].traits.joint_states]
each_keeping = pytest.mark.parametrize("strategy", KEEPING)
each_joint = pytest.mark.parametrize("strategy", JOINT)


class Forgetful(Wiretap):
    """A grid on which nodes lose their memory, and perhaps files, after a round.

    Args:
        losses: Maps a round to partitions.
        files: The folder and pattern of the files that are removed at the same time.
    """

    def __init__(
        self, *args: Any, losses: Mapping[int, tuple[int, ...]], files: tuple[Path, str] | None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.losses, self.files = losses, files

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        partition = message.metadata.dst_node_id - FIRST_NODE_ID
        if message.metadata.message_type == MessageType.TRAIN:
            server_round = int(message.content.config_records[CONFIG][ROUND])  # type: ignore[arg-type]
            if partition in self.losses.get(server_round, ()):
                self._contexts[FIRST_NODE_ID + partition].state.clear()
                if self.files is not None:
                    for file in self.files[0].glob(self.files[1]):
                        file.unlink()
        return reply

    def state(self, partition: int) -> ConfigRecord:
        return self._contexts[FIRST_NODE_ID + partition].state.config_records[STATE]


def forget(
    path: Path, config: Mapping[str, Scalar], losses: Mapping[int, tuple[int, ...]] | None = None, files: str = ""
) -> tuple[Run, Forgetful]:
    """Run a federation in which partition 1 loses its state after round 2, or as ``losses`` determines.

    ``files``: A pattern of files under ``client-state`` that are removed, too.
    """
    flat = flat_config(path, {"num-server-rounds": ROUNDS, **config})
    gone = {LOST_AFTER: (LOSER,)} if losses is None else losses
    grid = Forgetful(client_app, CLIENTS, flat, losses=gone, files=(path / "client-state", files) if files else None)
    serve(grid, server_app, flat)
    return Run(path), grid


def lost(run: Run) -> dict[int, list[int]]:
    """Map each round with lost states to the partitions."""
    return {line["round"]: line["state_lost"] for line in run.lines if line["state_lost"]}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING and "state" in r.getMessage()]


def since(grid: Wiretap) -> dict[int, int]:
    """Map each round to the first round whose states are valid, according to its messages."""
    own = [e for e in grid.exchanges if not e.phase]
    told = {e.server_round: e.message.content.config_records[CONFIG].get(STATE_SINCE) for e in own}
    return {server_round: int(value) for server_round, value in told.items() if value is not None}  # type: ignore[arg-type]


@each_keeping
def test_a_lost_state_is_named_once(strategy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, grid = forget(tmp_path / "run", {"strategy": strategy})
    assert lost(run) == {3: [1]}
    assert [line["clients_answered"] for line in run.lines[1:]] == [CLIENTS] * ROUNDS
    told = ["round 3: client state lost: partition 1 has none, kept the state of round 2"]
    if strategy in JOINT:
        name = ALGORITHMS[strategy].strategy.__name__
        told.append(f"round 3: {name} sums the clients' states: all clients restart without a state in round 4")
    assert warnings(caplog) == told
    assert since(grid) == ({4: 4, 5: 4, 6: 4} if strategy in JOINT else {})


@each_keeping
def test_a_first_visit_is_no_loss(strategy: str, tmp_path: Path) -> None:
    fraction = 1.0 if ALGORITHMS[strategy].traits.needs_all_clients else 0.4
    run, grid = forget(tmp_path / "run", {"strategy": strategy, "fraction-train": fraction}, {})
    assert lost(run) == {}
    visits: dict[int, list[int]] = {}
    for e in grid.exchanges:
        if not e.phase:
            made = e.reply.content.metric_records[METRICS][STATE_ROUND]
            assert made == (visits[e.partition][-1] if e.partition in visits else 0)
            visits.setdefault(e.partition, []).append(e.server_round)
    assert sorted(visits) == [0, 1, 2]


def test_others_say_nothing_of_states(tmp_path: Path) -> None:
    for strategy, row in ALGORITHMS.items():
        if row.client.memory is None:
            _, grid = federate(tmp_path / strategy, {"strategy": strategy, "num-server-rounds": 1})
            assert all(set(e.reply.content.metric_records[METRICS]) == {"num-examples", ROUND} for e in grid.exchanges)


@each_keeping
def test_a_dropped_reply_leaves_a_newer_state_which_is_no_loss(strategy: str, tmp_path: Path) -> None:
    asked: list[int] = []

    def tamper(exchange: Exchange) -> Message:
        if exchange.server_round == 2 and exchange.partition == LOSER and not exchange.phase and not asked:
            asked.append(exchange.partition)
            return Message(Error(2, "its reply was lost"), reply_to=exchange.message)
        return exchange.reply

    run, grid = federate(tmp_path / "run", {"strategy": strategy, "num-server-rounds": 4}, tamper=tamper)
    assert asked
    assert lost(run) == {}
    third = [e for e in grid.exchanges if e.server_round == 3 and e.partition == LOSER and not e.phase]
    assert third[0].reply.content.metric_records[METRICS][STATE_ROUND] == 2


@each_keeping
def test_a_state_on_disk_is_not_lost(strategy: str, tmp_path: Path) -> None:
    config: dict[str, Scalar] = {"strategy": strategy, "checkpoint-every": 10}
    run, _ = forget(tmp_path / "run", config)
    whole, _ = forget(tmp_path / "whole", config, {})
    assert lost(run) == {}
    assert run.model_bytes == whole.model_bytes


@each_keeping
def test_an_older_state_is_a_loss(strategy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The newest file is lost together with the memory."""
    files = f"*/client-{LOSER}/round-000002.safetensors"
    run, _ = forget(tmp_path / "run", {"strategy": strategy, "checkpoint-every": 10}, files=files)
    assert lost(run) == {3: [1]}
    assert "partition 1 has the state of round 1, kept the state of round 2" in warnings(caplog)[0]


@each_keeping
@pytest.mark.parametrize("kept", [True, False])
def test_a_resumed_run_knows_who_had_a_state(strategy: str, kept: bool, tmp_path: Path) -> None:
    """After a resume, no node has its memory; of three sites' files two are removed, or none."""
    config: dict[str, Scalar] = {"strategy": strategy, "checkpoint-every": 2}
    federate(tmp_path / "run", {**config, "num-server-rounds": 4})
    for partition in () if kept else (0, 2):
        (folder,) = (tmp_path / "run" / "client-state").glob(f"*/client-{partition}")
        shutil.rmtree(folder)
    run, _ = federate(tmp_path / "run", {**config, "num-server-rounds": 6, "resume": True})
    assert lost(run) == ({} if kept else {5: [0, 2]})


@each_joint
def test_a_resumed_run_knows_that_all_began_afresh(strategy: str, tmp_path: Path) -> None:
    """The loss and the checkpoint are in round 3, so the states on disk are older than the loss."""
    config: dict[str, Scalar] = {"strategy": strategy, "checkpoint-every": 3}
    path = tmp_path / "run"
    run, _ = forget(path, {**config, "num-server-rounds": 3}, files=f"*/client-{LOSER}/*")
    assert lost(run) == {3: [1]}
    run, grid = federate(path, {**config, "num-server-rounds": 5, "resume": True})
    assert lost(run) == {3: [1]}
    assert since(grid) == {4: 4, 5: 4}
    for e in grid.exchanges:
        if e.server_round:
            assert e.reply.content.metric_records[METRICS][STATE_ROUND] == (0 if e.server_round == 4 else 4)


# Sums over all states remain correct.


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Scalar]:
    """Three sites with different features and shares of positives, in float64 and with full batches."""
    rng = np.random.default_rng(5)
    place = np.repeat(np.arange(CLIENTS), 20)
    features = rng.normal(size=(60, 3)) + 0.7 * place[:, None] * [1, -1, 0]
    labels = (features @ [1.0, 0.5, -1.0] + 2 * rng.normal(size=60) > place - 1).astype(int)
    common: dict[str, Scalar] = {"dtype": "float64", "batch-size": 0, "learning-rate": 0.3, "local-steps": 3}
    return {**save_npz(tmp_path / "data.npz", features, labels), **common}


@pytest.mark.parametrize("strategy", ["scaffold", "codasca"])
def test_the_server_s_control_is_the_mean_of_the_clients_again(
    strategy: str, data: dict[str, Scalar], tmp_path: Path
) -> None:
    _, grid = forget(tmp_path / "run", {**data, "strategy": strategy, "learning-rate": 0.05})
    kind = ALGORITHMS[strategy].strategy.down_type
    assert kind is not None
    controls = np.zeros((CLIENTS, 0))
    for server_round in range(1, ROUNDS + 1):
        exchanges = [e for e in grid.exchanges if e.server_round == server_round and not e.phase]
        record = exchanges[0].message.content.config_records.get(PAYLOAD)
        told = None if record is None else kind.from_record(record).arrays().get("control")
        changes = [
            ControlChange.from_record(e.reply.content.config_records[PAYLOAD]).change
            for e in sorted(exchanges, key=lambda e: e.partition)
        ]
        if server_round in (1, 4):  # the first round, and the round in which all clients start again
            assert told is None
            controls = np.zeros((CLIENTS, len(changes[0])))
        elif server_round != 3:
            np.testing.assert_allclose(told, controls.mean(axis=0), rtol=0, atol=1e-12)
        controls += changes
    kept = [ControlVariate.from_record(grid.state(i)).control for i in range(CLIENTS)]
    np.testing.assert_allclose(kept, controls, rtol=0, atol=1e-12)


def test_fedcanon_s_control_is_the_mean_of_the_clients_again(data: dict[str, Scalar], tmp_path: Path) -> None:
    """Without a penalty, the server sends c. The memories are of the round before."""
    config: dict[str, Scalar] = {**data, "strategy": "fedcanon", "composite.penalty": "none"}
    _, grid = forget(tmp_path / "whole", config)
    _, shorter = forget(tmp_path / "shorter", {**config, "num-server-rounds": ROUNDS - 1})
    sent = {e.server_round: e.message.content.config_records.get(PAYLOAD) for e in grid.exchanges if not e.phase}
    assert [server_round for server_round in range(1, ROUNDS + 1) if sent[server_round] is None] == [1, 4]
    record = sent[ROUNDS]
    assert record is not None
    kept = [ControlVariate.from_record(shorter.state(i)).control for i in range(CLIENTS)]
    np.testing.assert_allclose(ControlVariate.from_record(record).control, np.mean(kept, axis=0), rtol=0, atol=1e-12)


def test_the_corrections_add_up_to_zero_again(data: dict[str, Scalar], tmp_path: Path) -> None:
    sums = {}
    for rounds in range(1, ROUNDS + 1):
        _, grid = forget(tmp_path / f"{rounds}", {**data, "strategy": "composite", "num-server-rounds": rounds})
        kept = [
            CorrectionState.from_record(grid.state(i)).correction
            for i in range(CLIENTS)
            if rounds != LOST_AFTER or i != LOSER
        ]
        sums[rounds] = np.abs(np.sum(kept, axis=0)).max(), np.abs(kept).max()
    assert sums[3][0] > 1e-2
    assert sums[4] == (0, 0)
    assert max(sums[5][0], sums[6][0]) < 1e-13
    assert min(sums[5][1], sums[6][1]) > 1e-2


# A site's reports about its state.


@pytest.mark.parametrize("told", [-1, 3, 2.0, [1]])
def test_an_impossible_round_is_a_bad_reply(told: object, tmp_path: Path) -> None:
    def tamper(exchange: Exchange) -> Message:
        if exchange.server_round == 2 and exchange.partition == LOSER:
            exchange.reply.content.metric_records[METRICS][STATE_ROUND] = told  # type: ignore[assignment]
        return exchange.reply

    run, _ = federate(tmp_path / "run", {"strategy": "scaffold"}, tamper=tamper)
    assert run.lines[2]["dropped"] == {"1": f"'state-round' is {told}, expected a round from 0 to 2"}
    assert lost(run) == {}
