"""The data that stay at the parties of a vertical run, and the settings that only a node decides."""

import asyncio
import contextlib
import dataclasses
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from apps.config import Scalar
from apps.training import Training
from payloads.wire import ROUND
from tests.apps.vertical_runs import PARTIES, client_of, play, segment_of
from tests.battery.federation import payloads_of
from tests.battery.ports import free_ports
from tests.refusals import refuses
from vertical.parties import Party
from vertical.records import CREDENTIALS, Credentials, DataSummary, Segment
from vertical.segment.plan import Holding, SegmentOutcome
from vertical.settings import VFB2Settings
from vertical.transport.addresses import Address
from vertical.transport.folders import sockets


def test_no_model_travels_and_only_active_parties_hold_labels(tmp_path: Path) -> None:
    _, tap = play(tmp_path / "run", {})
    labelled = {}
    for exchange in tap.exchanges:
        down, up = payloads_of("vfb2-sgd", exchange)
        assert (getattr(up, "weights", None) is not None) == (exchange.server_round == 3)
        assert exchange.message.content.array_records["arrays"]["parameters"].numpy().size == 0
        assert isinstance(down, Segment) == (exchange.phase != CREDENTIALS)
        if isinstance(up, DataSummary):
            labelled[exchange.partition] = bool(up.labels[0])
    assert labelled == {0: True, 1: True, 2: False, 3: False}


@pytest.mark.parametrize(
    ("config", "nodes"),
    [({"vfb2.assemble": VFB2Settings().assemble}, [{}] * PARTIES), ({}, [{}, {}, {"share-block": False}, {}])],
    ids=["by-default", "one-does-not-share"],
)
def test_blocks_that_are_not_shared_stay_at_the_parties(
    config: dict[str, Scalar], nodes: list[dict[str, Scalar]], tmp_path: Path
) -> None:
    kept = [{**node, "state-dir": str(tmp_path / f"state-{place}")} for place, node in enumerate(nodes)]
    run, tap = play(tmp_path / "run", config, kept)
    assert run.model == {}
    assert all(getattr(payloads_of("vfb2-sgd", e)[1], "weights", None) is None for e in tap.exchanges)
    shared, _ = play(tmp_path / "shared", {})
    for place in range(PARTIES):
        (file,) = (tmp_path / f"state-{place}").rglob("block.safetensors")
        np.testing.assert_array_equal(load_file(file)["weights"], shared.model[f"weights.{place}"])


def test_a_server_without_run_tokens_does_not_keep_parties_from_their_state_dir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's ServerApp may start the strategy: the folder then has the name of the run's salt."""
    monkeypatch.setattr(Training, "offer_state_dir", lambda *_: None)
    run, tap = play(tmp_path / "run", {}, [{"state-dir": str(tmp_path / "state")}] * PARTIES)
    segments = [payloads_of("vfb2-sgd", exchange)[0] for exchange in tap.exchanges]
    (salt,) = {segment.salt.tobytes().hex() for segment in segments if isinstance(segment, Segment)}
    for place in range(PARTIES):
        kept = load_file(tmp_path / "state" / salt / f"client-{place}" / "block.safetensors")["weights"]
        np.testing.assert_array_equal(kept, run.model[f"weights.{place}"])


def test_a_party_does_not_give_what_it_does_not_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's request makes no difference."""
    rows = Mock(labelled=True, columns=3, names=("a", "b", "c"))
    rows.holding.return_value = Holding(np.ones((2, 3)), np.ones((1, 3)), np.ones(2), np.ones(1))
    rows.ids.return_value, rows.training_marks.return_value = ["1", "2", "3"], None
    client = client_of(tmp_path, Party(0, 3, lambda: rows))
    monkeypatch.setattr("vertical.taking_part.run", lambda turn, plan, start: SegmentOutcome(np.ones(3)))
    client.inbox = segment_of([b""] * 3, share=True)
    message = [np.zeros(0)], {ROUND: 1}
    client.fit(*message)
    assert client.outbox.weights is not None
    client.settings = client.settings.model_copy(update={"assemble": False})
    client.fit(*message)
    assert client.outbox.weights is None
    client.settings = client.settings.model_copy(update={"assemble": True})
    client.party = dataclasses.replace(client.party, share=False)
    client.fit(*message)
    assert client.outbox.weights is None


def test_no_key_is_written_to_a_disk(tmp_path: Path) -> None:
    run, grid = play(tmp_path / "run", {"checkpoint-every": 1})
    files = list((run.path / "client-state").rglob("*.safetensors"))
    assert len(files) >= PARTIES
    for file in files:
        with safe_open(file, framework="numpy") as tensors:
            assert "identity" not in tensors.keys()  # noqa: SIM118
            assert file.name == "block.safetensors" or "segments" in tensors.keys()  # noqa: SIM118
    held = [context.state.config_records["client-state"] for context in grid._contexts.values()]
    assert all(b"PRIVATE KEY" in bytes(record["identity"]) for record in held)  # type: ignore[arg-type]


def test_the_sockets_are_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # a socket's path must be short
        monkeypatch.setattr("tempfile.tempdir", short)
        play(tmp_path / "run", {})
        assert list(Path(short).iterdir()) == []
        with pytest.raises(RuntimeError, match="its partial cannot be sent"):
            play(tmp_path / "failed", {"learning-rate": 1e9, "max-retries": 1})
        assert list(Path(short).iterdir()) == []


@pytest.mark.parametrize("kind", ["open", "link"])
def test_a_folder_of_somebody_else_is_not_used(kind: str, tmp_path: Path) -> None:
    folder, theirs = tmp_path / "f", tmp_path / "theirs"
    if kind == "open":
        folder.mkdir(mode=0o755)
    else:
        theirs.mkdir(mode=0o700)
        folder.symlink_to(theirs)
    with pytest.raises(PermissionError, match="not a private folder"), sockets(Address("unix", str(folder / "1-0"))):
        pass
    assert folder.exists()


def test_the_last_party_to_leave_a_folder_removes_it(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    with sockets(Address("unix", str(folder / "1-0"))):
        assert folder.stat().st_mode & 0o777 == 0o700
        with sockets(Address("unix", str(folder / "1-1"))):
            pass
        assert folder.exists()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("config", "node", "told"),
    [
        ({}, {"share-block": "no"}, "share-block: got 'no', allowed: true or false"),
        ({}, {"advertise": 8080}, "advertise: got 8080, allowed: host:port"),
        ({}, {"advertise": "bank.example"}, "advertise: got 'bank.example', allowed: host:port"),
        ({}, {"advertise": "bank:7000", "listen": "0.0.0.0"}, "listen: got '0.0.0.0', allowed: host:port"),
        (
            {},
            {"listen": "0.0.0.0:7000"},
            "got listen without advertise, allowed: advertise without listen, or listen together",
        ),
        ({}, {"advertise": "none", "listen": "0.0.0.0:7000"}, "got listen with advertise='none', allowed: advertise"),
        ({}, {"peer-cert": "a.pem"}, "got peer-cert without peer-key"),
        ({}, {"peer-ca": "a.pem"}, "got only peer-ca 'a.pem', allowed: peer-ca together with peer-cert and peer-key"),
        ({}, {"peer-cert": "/nowhere.pem", "peer-key": "b"}, "peer-cert: got '/nowhere.pem', which does not exist"),
        ({}, {"data-path": "/nowhere.csv"}, "allowed: csv, parquet, since a party with a data-path reads a table"),
        ({"dataset": "csv"}, {}, "partition 0: data-path: got nothing, .* 'csv' is read from files; set"),
        ({"vfb2.alignment": "intersection"}, {}, "simulated parties, which have the same rows"),
    ],
)
def test_what_a_party_cannot_use(config: dict[str, Scalar], node: dict[str, Scalar], told: str, tmp_path: Path) -> None:
    with refuses(RuntimeError, told):
        play(tmp_path / "run", config, [{}, node, {}])


def test_parties_of_several_hosts_use_their_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = iter(range(100))
    monkeypatch.setattr("vertical.introductions.host_mark", lambda: bytes([next(counter)]) * 32)
    with refuses(RuntimeError, "party 0, 1, 2: got no address, .* on 3 hosts"):
        play(tmp_path / "without", {}, [{}] * 3)
    ports = free_ports(4)
    nodes: list[dict[str, Scalar]] = [{"advertise": f"127.0.0.1:{port}"} for port in ports[:3]]
    with forwarded(ports[0], ports[3]):  # occupies the port that party 0 advertises
        run, _ = play(tmp_path / "with", {}, [{**nodes[0], "listen": f"127.0.0.1:{ports[3]}"}, *nodes[1:]])
    assert run.lines[-1]["clients_answered"] == 3


def test_parties_that_nobody_can_reach_train_the_same_model(tmp_path: Path) -> None:
    keys: dict[str, Scalar] = {"vfb2.transport": "tcp", "vfb2.active-parties": 2, "vfb2.synchronous": True}
    hidden: dict[str, Scalar] = {"advertise": "none"}
    for name, nodes in {"seen": [{}] * 4, "hidden": [hidden, {}, {}, hidden]}.items():
        play(tmp_path / name, keys, nodes)
    seen, unseen = (load_file(tmp_path / name / "model.safetensors") for name in ("seen", "hidden"))
    for name, weights in seen.items():
        np.testing.assert_array_equal(unseen[name], weights)
    with refuses(RuntimeError, "advertise: got 'none' at every party, 0, 1, 2"):
        play(tmp_path / "none", keys, [hidden] * 3)


@contextlib.contextmanager
def forwarded(port: int, to: int) -> Iterator[None]:
    """Forward connections from one port of this machine to another, as a container's published port does."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65536):
                writer.write(chunk)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", to)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, forth), pump(back, writer))

    async def serve() -> None:
        async with await asyncio.start_server(relay, "127.0.0.1", port):
            ready.set()
            await asyncio.to_thread(done.wait)

    ready, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(10.0)
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_a_party_s_credentials_stay_the_same(tmp_path: Path) -> None:
    client = client_of(tmp_path, Party(0, 3, Mock()))
    told = {"server-round": 0, "phase": CREDENTIALS, "salt": "ab" * 16}
    shown = []
    for _ in range(2):
        assert client.fit([np.zeros(0)], dict(told)) == ([], 0, {})
        shown.append(client.outbox)
    first, second = shown
    assert isinstance(first, Credentials)
    assert dict(first.to_record()) == dict(second.to_record())
    with pytest.raises(ValueError, match="allowed: one empty array"):
        client.fit([np.zeros(3)], dict(told))
