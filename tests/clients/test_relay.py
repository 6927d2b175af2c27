"""Tests of unreachable parties that meet at a party that both can reach."""

import asyncio
import random
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from tests.clients.meshes import (
    Town,
    all_heard,
    as_threads,
    closed,
    converse,
    failures,
    in_town,
    joined,
    link,
    listen,
    outcome,
    town,
    until,
)
from tests.clients.test_mesh_failures import cut
from tests.clients.test_mesh_unjoined import all_fail
from vertical.transport.addresses import Address
from vertical.transport.frames import Frame, Kind, PartyError, pack
from vertical.transport.links import Link
from vertical.transport.mesh import Mesh

SERIAL = 7


def hide(place: Town, *parties: int) -> Town:
    """Return the town with some parties unreachable."""
    shown = enumerate(place.addresses)
    return replace(place, addresses=[Address("none", str(p)) if p in parties else own for p, own in shown])


@pytest.mark.parametrize(("hidden", "parties"), [((0,), 2), ((0, 2), 4), ((0, 1, 2, 4), 5)])
def test_all_hear_all_whoever_is_hidden(hidden: tuple[int, ...], parties: int) -> None:
    with town(parties, "tcp") as place:
        seen = hide(place, *hidden)
        heard = as_threads(parties, lambda me: converse(seen.mesh(me), 100))
        assert heard == [all_heard(me, parties, 100) for me in range(parties)]


@in_town(4, "unix", "tcp", join=False)
async def test_large_bodies_pass_and_the_relay_reads_none(place: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    received = Link.received

    def record(at: Link, chunk: bytes) -> None:
        if getattr(at.owner, "me", None) == 1:
            read.append(chunk)
        received(at, chunk)

    monkeypatch.setattr(Link, "received", record)
    body = b"the plaintext of two " * 150_000
    bodies = [body[: random.Random(1).randrange(len(body))], body, b"", body]
    async with joined(hide(place, 0, 2)) as meshes:
        heard = {me: listen(meshes[me]) for me in (0, 2)}
        for update, one in enumerate(bodies):
            meshes[0].send(2, Frame(Kind.THETA, 0, update, one))
            meshes[2].send(0, Frame(Kind.THETA, 2, update, one))
        meshes[0].send(1, Frame(Kind.THETA, 0, 0, b"for the relay"))
        await until(lambda: len(heard[0]) == len(heard[2]) == len(bodies), 20.0)
        assert heard == {me: [(2 - me, update, one) for update, one in enumerate(bodies)] for me in (0, 2)}
        assert meshes[1].counters.frames_received == 1  # forwarded frames are not counted as its own
    passed = b"".join(read)
    assert b"for the relay" in passed
    assert len(passed) > 2 * sum(map(len, bodies))
    assert b"plaintext" not in passed


@in_town(4, join=False, close=0.2)
async def test_an_abort_passes_the_relay(place: Town) -> None:
    async with joined(hide(place, 0, 2)) as meshes:
        meshes[1].abort = lambda error: None  # type: ignore[method-assign]
        link(meshes[2], 0).send_control(Kind.ABORT, PartyError(3, "its column is not finite").to_bytes())
        assert str(await outcome(asyncio.wait_for(meshes[0].failed, 5.0))) == "party 3: its column is not finite"


@pytest.mark.parametrize("culprit", [0, 1, 2, 3])
@in_town(4, join=False, close=20.0)
async def test_who_is_killed_is_named(place: Town, culprit: int) -> None:
    """This includes the relay, party 1, which also ends the connection of 0 and 2."""
    async with joined(hide(place, 0, 2)) as meshes:
        cut(meshes[culprit])
        left = [meshes[me] for me in range(4) if me != culprit]
        began = time.monotonic()
        assert {str(error) for error in await failures(left)} == {f"party {culprit}: its connection closed"}
        await closed(*left)
        assert time.monotonic() - began < 10.0


@pytest.mark.parametrize("culprit", [1, 2])
def test_who_hangs_is_named(culprit: int) -> None:
    named = threading.Barrier(4)

    async def life(place: Town, me: int) -> None:
        mesh = place.mesh(me)
        try:
            await mesh.join()
            if me == culprit:
                # its loop stands still until all other parties have named it
                named.wait(20.0)
            await mesh.failed
        finally:
            if me != culprit:
                named.wait(20.0)
            await mesh.close()

    with town(4, "tcp", beat=0.1, silence=0.8, close=0.5) as place:
        errors = as_threads(4, lambda me: life(hide(place, 0, 2), me))
        assert {str(error) for error in errors} == {f"party {culprit}: it has been silent for 0.8 s"}


@pytest.mark.parametrize(("absent", "words"), [
    (1, "party 1: it never joined within 0.6 s"),
    (2, "party 2: it never joined within 0.6 s"),
])  # fmt: skip
def test_who_never_joins_is_named(absent: int, words: str) -> None:
    with town(4, join=0.6, close=0.2) as place:
        errors = all_fail(hide(place, 0, 2), absent)
        assert all(str(error).startswith(words) for error in errors.values())


@pytest.mark.parametrize("impostor", [0, 2])
def test_an_unknown_certificate_is_named(impostor: int) -> None:
    with town(3, join=1.0, close=0.3) as place:
        seen = hide(place, 0, 2)
        # the relay and the impostor know each other, so the other hidden party is the one that rejects it
        lured = seen.with_impostor(impostor)
        views: dict[str, Any] = {"party_1": lured, f"party_{impostor}": lured}
        errors = all_fail(seen, **views)
        assert impostor in {error.party for error in errors.values()}
        assert errors[2 - impostor].party == impostor


FORGERIES = [
    ("for one that can be reached", 0, 1, 3, b"x", "a connection with party 3, which this party does not relay"),
    ("for the relay itself", 0, 1, 1, b"x", "a connection with party 1,"),
    ("for its sender", 0, 1, 0, b"x", "a connection with party 0,"),
    ("for nobody", 0, 1, 9, b"x", "a connection with party 9,"),
    ("of one that can be reached", 3, 1, 0, b"x", "a connection with party 0,"),
    ("not of the relay", 3, 0, 2, b"x", "a connection with party 2,"),
    ("in the name of one that can be reached", 1, 0, 3, b"x", "a connection with party 3,"),
    ("in the name of its receiver", 1, 2, 2, b"x", "a connection with party 2,"),
    ("between two that can be reached", 3, 1, 3, b"", "a connection with party 3,"),
]


@pytest.mark.parametrize(("what", "forger", "to", "active", "body", "words"), FORGERIES, ids=[f[0] for f in FORGERIES])
@in_town(4, join=False)
async def test_a_forger_is_named(
    place: Town, what: str, forger: int, to: int, active: int, body: bytes, words: str
) -> None:
    async with joined(hide(place, 0, 2)) as meshes:
        link(meshes[forger], to).queue(pack(SERIAL, Kind.RELAY, active, 0, body))
        link(meshes[forger], to).flush()
        errors = await failures(meshes)
        assert {error.party for error in errors} == {forger}
        assert all(words in error.reason for error in errors)


@in_town(4, join=False, close=0.2)
async def test_the_relay_keeps_little_for_who_is_absent(place: Town) -> None:
    seen = hide(place, 0, 2)
    meshes: list[Mesh] = [seen.mesh(me) for me in (0, 1, 3)]
    joins = [asyncio.ensure_future(outcome(mesh.join())) for mesh in meshes]
    await until(lambda: 1 in meshes[0]._hellos)
    for _ in range(200):
        link(meshes[0], 1).queue(pack(SERIAL, Kind.RELAY, 2, 0, bytes(100)))
    link(meshes[0], 1).flush()
    for error in await failures(meshes):
        assert error.party == 0
        assert "more than 16384 bytes to party 2, which has not joined" in error.reason
    await asyncio.gather(*joins)
    await closed(*meshes)


@in_town(4, join=False, beat=0.05, silence=0.4, close=0.2)
async def test_the_relay_stays_while_others_talk_through_it(place: Town) -> None:
    async with joined(hide(place, 0, 2)) as meshes:
        heard = listen(meshes[2])
        leaving = asyncio.ensure_future(meshes[1].close())
        await asyncio.sleep(1.0)
        assert not leaving.done()
        meshes[0].send(2, Frame(Kind.THETA, 0, 0, b"late"))
        await until(lambda: bool(heard))
        assert not any(mesh.failed.done() for mesh in meshes)
        await closed(meshes[0], meshes[2])
        await asyncio.wait_for(leaving, 5.0)
        assert not meshes[3].failed.done()


def stop_reading(mesh: Mesh, peer: int) -> None:
    asyncio.get_running_loop().remove_reader(link(mesh, peer)._socket.fileno())


@in_town(4, join=False, silence=30.0)
async def test_flood_does_not_fill_the_relay(place: Town) -> None:
    async with joined(hide(place, 0, 2)) as meshes:
        heard, sent = listen(meshes[2]), 48
        backlog, own = link(meshes[1], 2)._backlog, link(meshes[0], 1)._backlog
        stop_reading(meshes[2], 1)
        most = 0
        for update in range(sent):
            meshes[0].send(2, Frame(Kind.THETA, 0, update, bytes(2**20)))
            for _ in range(40):
                await asyncio.sleep(0)
            most = max(most, sum(map(len, backlog)))
        assert 2**22 <= most < 2**22 + 2**20
        assert sum(map(len, own)) > 2**24  # the sender keeps the bytes that the relay does not read
        asyncio.get_running_loop().add_reader(link(meshes[2], 1)._socket.fileno(), link(meshes[2], 1)._readable)
        await until(lambda: len(heard) == sent, 20.0)
        assert not any(mesh.failed.done() for mesh in meshes)


@in_town(4, join=False, beat=0.05, silence=0.5, close=0.3)
async def test_party_that_takes_nothing_from_the_relay_is_named(place: Town) -> None:
    """The party is alive and sends heartbeats. The party that floods it is not blamed."""
    seen = hide(place, 0, 2)
    meshes = [(seen.with_limits(silence=20.0) if me == 2 else seen).mesh(me) for me in range(4)]
    await asyncio.gather(*(mesh.join() for mesh in meshes))
    stop_reading(meshes[2], 1)
    for update in range(16):
        meshes[0].send(2, Frame(Kind.THETA, 0, update, bytes(2**20)))
    errors = await failures(meshes[:2] + meshes[3:])
    assert {str(error) for error in errors} == {"party 2: it has accepted no byte for 0.5 s"}
    await closed(*meshes)


@in_town(4, join=False)
async def test_relayed_body_that_is_too_long_is_named(place: Town) -> None:
    async with joined(hide(place, 0, 2)) as meshes:
        link(meshes[0], 1).queue(pack(SERIAL, Kind.RELAY, 2, 0, bytes(2**20)))
        link(meshes[0], 1).flush()
        assert {error.party for error in await failures(meshes)} == {0}


def test_somebody_can_be_reached() -> None:
    async def make(place: Town) -> None:
        with pytest.raises(ValueError, match="no address of 2 parties"):
            place.mesh(0)

    with town(2) as place:
        asyncio.run(make(hide(place, 0, 1)))
