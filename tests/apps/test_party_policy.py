"""Runs that a party refuses, with a reason, before it opens its file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.client_app import app as client_app
from apps.config import Scalar
from apps.parties import table as party_table
from apps.server_app import app as server_app
from payloads.wire import PHASE, ROUND
from simulations.engines.grid import FIRST_NODE_ID
from tests.apps.vertical_runs import CSV, EVERYBODY, KEYS, client_of, identified, own_files, play, segment_of
from tests.battery.federation import Wiretap, flat_config, serve
from tests.refusals import refuses
from vertical.parties import Party
from vertical.policy import Policy, PolicyError
from vertical.records import ALIGNMENT, DATA_SUMMARY, INTERSECTION
from vertical.transport.identity import Identity, fingerprint


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the parties' files that have been read."""
    names: list[str] = []
    read = party_table.read_table
    monkeypatch.setattr(party_table, "read_table", lambda path, *form: (names.append(path.name), read(path, *form))[1])
    return names


@pytest.mark.parametrize(
    ("policy", "config", "told"),
    [
        ({"fewest-parties": 4}, {}, "party 1: fewest-parties: got a run of 3 parties, allowed: 4 or more"),
        ({"largest-label-epsilon": 2}, {"vfb2.label-epsilon": 3.0}, "largest-label-epsilon: .*=3, .* at most 2; set"),
        ({"largest-label-epsilon": 0.5}, {}, "party 1: largest-label-epsilon: .*=0, allowed: above 0"),
        ({"allow-intersection": False}, {"vfb2.alignment": "intersection"}, "party 1: allow-intersection: got a run"),
        ({"allowed-maskings": "two-trees"}, {}, "party 1: allowed-maskings: .*'pairwise', allowed: two-trees"),
        ({}, {"strategy": "shared-sgd"}, "party 0: allowed-maskings: got a run with shares, allowed: pairwise or two-"),
        # a policy that cannot be read
        ({"fewest-parties": "3"}, {}, "node config: fewest-parties: got '3', allowed: an integer >= 0; change"),
        ({"fewest-parties": True}, {}, "fewest-parties: got True, allowed: an integer >= 0"),
        ({"largest-label-epsilon": 0}, {}, "largest-label-epsilon: got 0, allowed: a number > 0"),
        ({"allow-intersection": "no"}, {}, "allow-intersection: got 'no', allowed: true or false"),
        ({"pinned-peers": 5}, {}, "pinned-peers: got 5, allowed: name=SHA-256 pairs"),
        ({"pinned-peers": "bank"}, {}, "pinned-peers: got 'bank', allowed: name=SHA-256"),
        ({"audit-log": ""}, {}, "audit-log: got '', allowed: a path that is not empty"),
    ],
)
def test_the_handshake_refuses_by_the_run_config(
    policy: Mapping[str, Scalar], config: Mapping[str, Scalar], told: str, tmp_path: Path, opened: list[str]
) -> None:
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3)
    nodes[1] |= policy
    with refuses(RuntimeError, told):
        play(tmp_path / "run", {**CSV, **config}, nodes)
    assert opened == []


def test_a_stranger_is_refused_and_members_are_not(tmp_path: Path, opened: list[str]) -> None:
    """Only the pinning party refuses; the other parties open their files, and no party is asked twice."""
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3)
    members = identified(tmp_path, nodes)
    run, _ = play(tmp_path / "run", CSV, members)
    assert run.lines[-1]["clients_answered"] == 3
    opened.clear()
    pins = str(members[1]["pinned-peers"]).split()
    for place, node in enumerate(members):
        if place == 1:
            node["pinned-peers"] = " ".join(pins[:2])
        else:
            del node["pinned-peers"]
        file = Path(str(node["data-path"]))
        file.write_text(file.read_text() + "\n")
    flat = flat_config(tmp_path / "refused", {**KEYS, **CSV})
    grid = Wiretap(client_app, 3, flat, members)
    shown = fingerprint(Identity.from_files(str(members[2]["peer-cert"]), str(members[2]["peer-key"])).certificate)
    with refuses(
        RuntimeError, f"^party 1: pinned-peers: got party 2 without a pin; .* SHA-256 of its certificate: {shown}"
    ):
        serve(grid, server_app, flat)
    grid.close()
    assert sorted(opened) == ["party-0.csv", "party-2.csv"]
    assert [exchange.phase for exchange in grid.exchanges if exchange.partition == 1] == ["credentials", DATA_SUMMARY]


def test_the_handshake_tells_no_counts(tmp_path: Path) -> None:
    flat = flat_config(tmp_path / "run", {**KEYS})
    grid = Wiretap(client_app, 3, flat)
    told: list[Any] = []
    pull = grid.pull_messages
    grid.pull_messages = lambda ids: [told.append(reply) or reply for reply in pull(ids)]  # type: ignore[method-assign, func-returns-value]
    serve(grid, server_app, flat)
    grid.close()
    handshakes = [reply.content["payload"] for reply in told if reply.metadata.message_type == "query"]
    assert [list(record) for record in handshakes] == [["identity"]] * 3
    first = [exchange for exchange in grid.exchanges if exchange.phase == "credentials"]
    assert len(first) == 3
    assert all(exchange.reply.content["metrics"]["num-examples"] == 0 for exchange in first)
    assert {exchange.message.metadata.dst_node_id - FIRST_NODE_ID for exchange in first} == {0, 1, 2}


def never() -> Any:
    raise AssertionError("the data were read")


@pytest.mark.parametrize("phase", [DATA_SUMMARY, INTERSECTION, ALIGNMENT, ""])
def test_no_message_gets_past_the_pins(phase: str, tmp_path: Path) -> None:
    me, friend, stranger = (Identity.create(name) for name in ("me", "friend", "stranger"))
    policy = Policy(pins={fingerprint(friend.certificate): "friend"}, allow_intersection=False)
    client = client_of(tmp_path, Party(0, 2, never, identity=me, policy=policy))
    client.inbox = segment_of([me.certificate, stranger.certificate])
    with refuses(PolicyError, "party 0: pinned-peers: got party 1 without a pin"):
        client.fit([np.zeros(0)], {ROUND: 1, **({PHASE: phase} if phase else {})})


def test_no_message_starts_an_intersection_that_the_owner_forbids(tmp_path: Path) -> None:
    me, friend = Identity.create("me"), Identity.create("friend")
    client = client_of(tmp_path, Party(0, 2, never, identity=me, policy=Policy(allow_intersection=False)))
    client.inbox = segment_of([me.certificate, friend.certificate])
    with refuses(PolicyError, "party 0: allow-intersection"):
        client.fit([np.zeros(0)], {ROUND: 0, PHASE: INTERSECTION})
