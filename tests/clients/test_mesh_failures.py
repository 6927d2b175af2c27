"""Tests of failures after joining: the segment ends at every party, and each names the culprit."""

import asyncio
import struct
import time
from collections.abc import Callable

import pytest

from tests.clients.meshes import closed, failures, in_town, link, listen, until
from vertical.transport.frames import HEADER, Frame, Kind, PartyError, pack
from vertical.transport.mesh import Mesh

SERIAL = 7

FORGERIES: list[tuple[str, Callable[[], bytes], str]] = [
    ("replayed", lambda: 2 * pack(SERIAL, Kind.THETA, 2, 5, b"twice"), "came a second time"),
    ("serial", lambda: pack(SERIAL - 1, Kind.THETA, 2, 0, b""), "serial 6; this segment's is 7"),
    ("serial of an abort", lambda: pack(SERIAL + 1, Kind.ABORT, 0, 0, PartyError(0, "").to_bytes()), "serial 8"),
    ("serial of a beat", lambda: pack(0, Kind.BEAT, 0, 0), "serial 0"),
    ("oversize", lambda: HEADER.pack(10_001, SERIAL, Kind.THETA, 0, 0), "body of 10001 bytes; the maximum is 10000"),
    ("oversize with another serial", lambda: HEADER.pack(2**32 - 1, 0, 0, 0, 0), "4294967295 bytes"),
    ("kind", lambda: pack(SERIAL, 99, 0, 0), "unknown kind 99"),
    ("kind zero", lambda: pack(SERIAL, 0, 0, 0), "unknown kind 0"),
    ("own kind", lambda: pack(SERIAL, 250, 0, 0), "unexpected frame of kind 250"),
    ("second hello", lambda: pack(SERIAL, Kind.HELLO, 0, 0), "unexpected frame of kind 240"),
    ("after the last", lambda: pack(SERIAL, Kind.DONE, 0, 0) + pack(SERIAL, Kind.THETA, 0, 0), "kind 2 after its last"),
    ("last twice", lambda: 2 * pack(SERIAL, Kind.DONE, 0, 0), "kind 242 after its last"),
    (
        "abort of nobody",
        lambda: pack(SERIAL, Kind.ABORT, 0, 0, struct.pack("<i", 4)),
        "name one of 4 parties, got 4",
    ),
    ("empty abort", lambda: pack(SERIAL, Kind.ABORT, 0, 0), "at least 4 bytes"),
    ("other bytes", lambda: bytes(200), "serial 0"),
]


@pytest.mark.parametrize(("what", "forged", "words"), FORGERIES, ids=[row[0] for row in FORGERIES])
@in_town(4, body=10_000)
async def test_a_forger_is_named_by_all(meshes: list[Mesh], what: str, forged: Callable[[], bytes], words: str) -> None:
    heard = listen(meshes[0])
    meshes[2].send(0, Frame(Kind.THETA, 2, 4, b"well"))
    await until(lambda: bool(heard))
    link(meshes[2], 0).queue(forged())
    link(meshes[2], 0).flush()
    began = time.monotonic()
    errors = await failures(meshes)
    assert time.monotonic() - began < 4.0
    assert [error.party for error in errors] == [2] * 4  # the forger gets the report too
    assert len({error.reason for error in errors}) == 1
    assert words in errors[0].reason
    assert [update for _, update, _ in heard] == ([4, 5] if what == "replayed" else [4])


@in_town(3, close=20.0)
async def test_a_second_forger_is_not_waited_for(meshes: list[Mesh]) -> None:
    meshes[0].abort(PartyError(1, "the first"))
    link(meshes[2], 0).write(bytes(200))
    await failures(meshes)
    await asyncio.sleep(0.05)
    began = time.monotonic()
    await meshes[0].close()
    assert time.monotonic() - began < 10.0


@in_town(2)
async def test_a_forgery_one_byte_at_a_time(meshes: list[Mesh]) -> None:
    for byte in pack(SERIAL + 1, Kind.THETA, 0, 0):
        link(meshes[1], 0).write(bytes([byte]))
        await asyncio.sleep(0.001)
    errors = await failures(meshes)
    assert [error.party for error in errors] == [1, 1]


@in_town(3)
async def test_bytes_changed_on_the_way_break_the_connection(meshes: list[Mesh]) -> None:
    link(meshes[2], 0)._socket.send(b"\x17\x03\x03\x00\x20" + bytes(32))
    errors = await failures(meshes)
    assert {error.party for error in errors[:2]} == {2}
    assert "its TLS failed" in errors[0].reason


@in_town(3)
async def test_nothing_is_accepted_after_a_failure(meshes: list[Mesh]) -> None:
    heard = listen(meshes[0])
    meshes[1].send(0, Frame(Kind.THETA, 1, 0))
    meshes[0].abort(PartyError(2, "its rows are others"))
    meshes[0].send(1, Frame(Kind.THETA, 0, 0))
    assert meshes[0].counters.frames_sent == 0
    await failures(meshes)
    await asyncio.sleep(0.02)
    assert not heard


@in_town(4)
async def test_an_abort_carries_its_culprit_and_reason_to_all(meshes: list[Mesh]) -> None:
    meshes[1].abort(PartyError(3, "party 3's column 7 is not finite"))
    meshes[1].abort(PartyError(0, "a later failure"))
    for error in await failures(meshes):
        assert (error.party, error.reason) == (3, "party 3's column 7 is not finite")


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (OverflowError("too large"), "party 0: OverflowError: too large"),
        (PartyError(1, "its partial is not finite"), "party 1: its partial is not finite"),
    ],
)
@in_town(3)
async def test_what_the_handler_raises_fails_the_segment(meshes: list[Mesh], raised: Exception, words: str) -> None:
    def hear(peer: int, frame: Frame) -> None:
        raise raised

    meshes[0].on_frame = hear
    meshes[1].send(0, Frame(Kind.PARTIAL, 0, 0))
    errors = await failures(meshes)
    assert {str(error) for error in errors} == {words}
    assert errors[0] is raised or errors[0].__cause__ is raised


def cut(mesh: Mesh) -> None:
    """Return the other parties' errors when a process dies."""
    for peer in range(mesh.parties):
        if peer != mesh.me:
            link(mesh, peer).close()
    mesh._connector.stop()


@in_town(4)
async def test_who_leaves_because_of_another_is_not_named(meshes: list[Mesh]) -> None:
    # 0 loses the connection to 1, which has died because of 2; only 3 knows why
    link(meshes[1], 0).close()
    await asyncio.sleep(0.02)
    meshes[3].abort(PartyError(2, "its partial is not finite"))
    assert {error.party for error in await failures(meshes)} == {2}


@in_town(4)
async def test_the_first_failure_wins_though_the_culprit_is_gone(meshes: list[Mesh]) -> None:
    cut(meshes[2])
    began = time.monotonic()
    left = [meshes[me] for me in (0, 1, 3)]
    errors = await failures(left)
    assert time.monotonic() - began < 4.0
    # slow parties do not blame the parties that close because of the culprit
    await closed(*left)
    assert {str(error) for error in errors} == {"party 2: its connection closed"}


@in_town(2, "unix", "tcp")
async def test_an_abort_is_read_even_where_nothing_can_be_written_any_more(meshes: list[Mesh]) -> None:
    one, two = meshes
    # the leaving party has unread bytes, so its system resets the connection; two writes before it reads
    two.send(0, Frame(Kind.THETA, 1, 0, b"unread"))
    two._flush()
    link(one, 1).send_control(Kind.ABORT, PartyError(0, "the first-hand reason").to_bytes())
    link(one, 1).close()
    for update in range(1, 4):
        two.send(0, Frame(Kind.THETA, 1, update, b"into the void"))
        two._flush()
    (error,) = await failures([two])
    assert error.reason == "the first-hand reason"


@in_town(4)
async def test_two_who_fail_at_once_agree_with_their_peers_on_something(meshes: list[Mesh]) -> None:
    meshes[1].abort(PartyError(1, "one"))
    meshes[2].abort(PartyError(2, "two"))
    errors = await failures(meshes)
    assert {error.party for error in errors} <= {1, 2}
    assert (errors[1].party, errors[2].party) == (1, 2)
