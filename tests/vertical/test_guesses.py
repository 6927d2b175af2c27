"""Tests of a server, peer or submitter that guesses ids, probes by errors, or sends chosen addresses."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st

from apps.client_app import app as client_app
from apps.config import Scalar
from apps.server_app import app as server_app
from payloads.wire import PAYLOAD
from strategies.rounds.errors import reason_of
from tests.apps.vertical_runs import CSV, EVERYBODY, KEYS, own_files, play
from tests.battery.federation import Wiretap, flat_config, payloads_of, serve
from tests.clients.meshes import Town, closed, failures, in_town, town
from tests.clients.test_mesh_unjoined import all_fail
from tests.refusals import states
from vertical.alignment import digest
from vertical.records import INTERSECTION, Segment, join_bytes
from vertical.segment.same_rows import RowComparison
from vertical.transport.addresses import free_port
from vertical.transport.frames import FinalError, PartyError

SECRET = [*EVERYBODY[:-1], "row-777"]
Nodes = Sequence[dict[str, Scalar]]


def texts_of(grid: Wiretap) -> list[str]:
    """Return the errors and rejections that reached the server."""
    replies = [exchange.reply for exchange in grid.exchanges]
    configs = [dict(reply.content.config_records.get("config", {})) for reply in replies if reply.has_content()]
    return [reason_of(reply.error) for reply in replies if reply.has_error()] + [
        str(config["refusal"]) for config in configs if "refusal" in config
    ]


class Liar(Wiretap):
    """A server that changes the addresses in its messages."""

    lie: Callable[[int, list[str]], list[str]]

    def push_messages(self, messages: Any) -> list[str]:
        messages = list(messages)
        for message in messages:
            record = message.content.config_records.get(PAYLOAD)
            if record is not None and "addresses" in record:
                self._change(message, Segment.from_record(record))
        return super().push_messages(messages)

    def _change(self, message: Message, segment: Segment) -> None:
        party = self.place_of(message)
        whole, lengths = join_bytes([address.encode() for address in self.lie(party, segment.peers()[1])])
        message.content = message.content.copy()
        message.content[PAYLOAD] = replace(segment, addresses=whole, address_lengths=lengths).to_record()

    def place_of(self, message: Message) -> int:
        return sorted(self.get_node_ids()).index(message.metadata.dst_node_id)


def deceive(
    path: Path, config: dict[str, Scalar], nodes: Nodes, lie: Callable[[int, list[str]], list[str]]
) -> tuple[str, Liar]:
    """Return the error of a run with such a server, "" if it succeeds, and its grid."""
    flat = flat_config(path, {**KEYS, **CSV, "max-retries": 0, **config})
    grid, words = Liar(client_app, len(nodes), flat, nodes), ""
    grid.lie = lie  # type: ignore[method-assign]
    try:
        serve(grid, server_app, flat)
    except RuntimeError as error:
        words = str(error)
    finally:
        grid.close()
    return words, grid


# ids


@pytest.mark.parametrize("alignment", ["digest", "intersection"])
def test_server_cannot_guess_an_id(alignment: str, tmp_path: Path) -> None:
    nodes, _ = own_files(tmp_path, [SECRET] * 3)
    _, grid = play(tmp_path / "run", {**CSV, "vfb2.alignment": alignment}, nodes)
    pairs = [payloads_of("vfb2-sgd", exchange) for exchange in grid.exchanges]
    salts = {down.salt.tobytes() for down, _ in pairs if isinstance(down, Segment)}
    seen = b"".join(array.tobytes() for _, up in pairs if up is not None for array in up.arrays().values())
    guesses = [digest([*EVERYBODY[:-1], f"row-{guess}"], salt) for salt in salts for guess in range(700, 800)]
    assert len(guesses) >= 100
    assert not [guess for guess in guesses if guess in seen]


@given(st.text(min_size=1), st.text(min_size=1))
def test_parties_learn_whether_their_ids_are_equal(one: str, other: str) -> None:
    parties = [RowComparison(0, one, 9), RowComparison(1, other, 9)]
    answers = [party.answer({1 - me: parties[1 - me].tag}) for me, party in enumerate(parties)]
    for me, party in enumerate(parties):
        if one == other:
            party.check({1 - me: answers[1 - me][me]})
        else:
            with pytest.raises(FinalError):
                party.check({1 - me: answers[1 - me][me]})
    assert RowComparison(0, one, 9).tag != parties[0].tag  # a peer has nothing to compare a guess with


def test_answer_that_is_sent_back_does_not_pass() -> None:
    honest = RowComparison(0, "ids", 9)
    mirrored = honest.answer({1: honest.tag})
    with pytest.raises(FinalError, match=r"party 1: it has other rows \(9\) than 1 of 2 parties"):
        honest.check(mirrored)


def test_hopeless_intersection_is_not_repeated(tmp_path: Path) -> None:
    nodes, _ = own_files(tmp_path, [EVERYBODY[:30], EVERYBODY[30:], EVERYBODY])
    flat = flat_config(tmp_path / "run", {**KEYS, **CSV, "vfb2.alignment": "intersection"})
    grid = Wiretap(client_app, 3, flat, nodes)
    with pytest.raises(RuntimeError, match="the parties have 0 rows in common; at least 2 are needed"):
        serve(grid, server_app, flat)
    grid.close()
    assert [exchange.phase for exchange in grid.exchanges].count(INTERSECTION) == 3


# errors

QUESTIONS: dict[str, dict[str, Scalar]] = {
    "a label's value": {"positive-label": "73"},
    "a column": {"vfb2.id-column": "age"},
    "another column": {"vfb2.id-column": "nothing"},
    "a cell": {"feature-columns": "x3 x4:1,2 x6 x0"},
    "a label of two classes": {"vfb2.problem": "logistic"},
    "classes": {"vfb2.problem": "softmax", "vfb2.embedding": 7, "vfb2.assemble": False},
}


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_errors_of_a_party_answer_no_question(question: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3)
    frame = pd.read_csv(tmp_path / "party-1.csv").rename(columns={"x3": "x3", "x4": "income"})
    frame["income"] = frame["income"].astype(object)
    frame.loc[5, "income"] = "4711 EUR"
    frame.assign(age=np.arange(60) % 7).to_csv(tmp_path / "party-1.csv", index=False)
    nodes = [{**node, "verbose-errors": False} for node in nodes]
    words, grid = deceive(tmp_path / "run", QUESTIONS[question], nodes, lambda me, shown: shown)
    assert words
    texts = texts_of(grid)
    assert texts
    assert all(text.endswith("cannot take part; its own log has the reason") for text in texts)
    secrets = ("income", "4711", "age", "x3", "x4", "row ", "60", str(tmp_path))
    assert not [secret for secret in secrets for text in (words, *texts) if secret in text]
    assert "the server learns of this error, but not its text" in caplog.text


@in_town(3, join=False)
async def test_peers_get_no_text_of_an_error(place: Town) -> None:
    meshes = [replace(place, verbose=me != 1).mesh(me) for me in range(3)]
    await asyncio.gather(*(mesh.join() for mesh in meshes))
    meshes[1].abort(PartyError.of(ValueError("labels must be 0 or 1, got 4711"), 1))
    assert [str(error) for error in await failures(meshes)][::2] == ["party 1: it failed: see its log"] * 2
    assert "4711" in str(meshes[1].failed.exception())
    await closed(*meshes)


def test_stranger_at_an_address_is_not_told_from_a_closed_port() -> None:
    with town(3, join=2.0, close=0.2) as place:
        lured = replace(place.with_impostor(0), verbose=False)
        errors = all_fail(replace(place, verbose=False), party_0=lured)
        assert {str(errors[me].redact()) for me in (1, 2)} == {"party 0: it never joined within 2 s"}
        assert "its certificate is unknown" in str(errors[1])


def test_own_errors_are_complete_if_the_owner_wants_it(tmp_path: Path) -> None:
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3)
    nodes = [{**node, "verbose-errors": True} for node in nodes]
    words, _ = deceive(tmp_path / "run", QUESTIONS["a column"], nodes, lambda me, shown: shown)
    assert states(words, "no column 'age', allowed: the columns id")


# addresses


def test_folder_that_the_server_names_stays(tmp_path: Path) -> None:
    folder = Path(f"/tmp/vfb2-test-{tmp_path.name[-20:]}")
    folder.mkdir(mode=0o700)
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3)
    try:
        words, _ = deceive(
            tmp_path / "run", {}, nodes, lambda me, shown: [f"unix:{folder}/{party}" for party in range(3)]
        )
        assert (words, folder.exists(), list(folder.iterdir())) == ("", True, [])
    finally:
        folder.rmdir()


def test_party_listens_only_where_it_has_said(tmp_path: Path) -> None:
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3)
    ports = [free_port() for _ in range(3)]
    lie = [f"tcp:127.0.0.1:{port}" for port in ports]
    words, _ = deceive(tmp_path / "run", {"vfb2.transport": "tcp"}, nodes, lambda me, shown: lie)
    assert states(words, f"party 0: address: got tcp:127.0.0.1:{ports[0]}, allowed: tcp:127.0.0.1:")


def test_host_that_the_owner_does_not_name_is_refused(tmp_path: Path) -> None:
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3)
    nodes[1]["peer-hosts"] = "bank.example.org 10.1.2.3"
    config: dict[str, Scalar] = {"vfb2.transport": "tcp", "vfb2.join-timeout": 2.0}
    words, _ = deceive(tmp_path / "run", config, nodes, lambda me, shown: shown)
    assert states(words, "party 1: peer-hosts: got party 0 at '127.0.0.1', allowed: bank.example.org, 10.1.2.3")


def test_errors_do_not_answer_whether_a_port_is_open(tmp_path: Path) -> None:
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3)
    nodes = [{**node, "verbose-errors": False} for node in nodes]
    config: dict[str, Scalar] = {"vfb2.transport": "tcp", "vfb2.join-timeout": 0.6, "retry-wait": 0.0}
    told = set()
    with socket.create_server(("127.0.0.1", 0)) as server:
        for port in (server.getsockname()[1], free_port()):

            def lie(me: int, shown: list[str], port: int = port) -> list[str]:
                return [f"tcp:127.0.0.1:{port}" if (me, party) == (2, 0) else one for party, one in enumerate(shown)]

            words, grid = deceive(tmp_path / f"run-{port}", config, nodes, lie)
            assert words
            told |= set(texts_of(grid))
    # the named party does not depend on the port
    assert told <= {f"party {party}: it never joined within 0.6 s" for party in (0, 2)}
