"""Tests of a working mesh: every frame arrives once, in order, and in few writes."""

import asyncio
import random
import ssl
import time

import pytest

from tests.clients.meshes import Town, closed, in_town, joined, listen, outcome, until
from vertical.transport.endpoint import Delays
from vertical.transport.frames import HEADER_BYTES, Frame, Kind, PartyError
from vertical.transport.mesh import Mesh


@in_town(2, "unix", "tcp")
async def test_bodies_of_every_size(meshes: list[Mesh], monkeypatch: pytest.MonkeyPatch) -> None:
    # the ssl module may accept fewer bytes than it is given
    write = ssl.SSLObject.write
    monkeypatch.setattr(ssl.SSLObject, "write", lambda tls, data: write(tls, data[:1_000_000]))
    random.seed(1)
    # lengths around a TLS record's 16,384 bytes and a read's 65,536, with and without the header
    edges = [0, 1, *(edge + off for edge in (16384, 65536) for off in (-16, -15, -14, -1, 0, 1)), 5_000_000]
    bodies = [random.randbytes(size) for size in [*edges, *(random.randrange(40_000) for _ in range(40))]]
    one, two = meshes
    heard = listen(two)
    for update, body in enumerate(bodies):
        one.send(1, Frame(Kind.THETA, 0, update, body))
        if update % 7 == 0:
            await asyncio.sleep(0)
    await until(lambda: len(heard) == len(bodies))
    assert heard == [(0, update, body) for update, body in enumerate(bodies)]
    size = sum(map(len, bodies)) + HEADER_BYTES * len(bodies)
    assert (one.counters.frames_sent, one.counters.bytes_sent) == (len(bodies), size)
    assert (two.counters.frames_received, two.counters.bytes_received) == (len(bodies), size)
    assert one.counters.frames_received == two.counters.bytes_sent == 0


@in_town(2)
async def test_frames_wait_for_a_handler_and_keep_their_order(meshes: list[Mesh]) -> None:
    one, two = meshes
    for update in range(5):
        one.send(1, Frame(Kind.PARTIAL, 0, update))
    await until(lambda: two.counters.frames_received == 5)
    early = listen(two)
    assert not early
    await until(lambda: len(early) == 5)
    two.on_frame = None
    one.send(1, Frame(Kind.PARTIAL, 0, 5))
    await until(lambda: two.counters.frames_received == 6)
    late = listen(two)
    one.send(1, Frame(Kind.PARTIAL, 0, 6))
    await until(lambda: len(late) == 2)
    assert [update for _, update, _ in early + late] == list(range(7))


@in_town(3, join=False)
async def test_nothing_is_handed_out_before_all_have_joined(place: Town) -> None:
    one, two, three = (place.mesh(me) for me in range(3))
    heard = listen(one)
    joins = [asyncio.ensure_future(mesh.join()) for mesh in (one, two)]
    await until(lambda: 1 in one._hellos and 0 in two._hellos)
    two._complete = True  # as if the third party had connected to it first
    two.send(0, Frame(Kind.PARTIAL, 0, 0, b"early"))
    await until(lambda: one.counters.frames_received == 1)
    two._complete = False
    await asyncio.sleep(0.05)
    assert not heard
    await asyncio.gather(three.join(), *joins)
    await until(lambda: heard == [(1, 0, b"early")])
    await closed(one, two, three)


@in_town(2, join=False, body=1000)
async def test_what_cannot_be_sent_is_refused(place: Town) -> None:
    early = place.mesh(0)
    with pytest.raises(RuntimeError, match="after join"):
        early.send(1, Frame(Kind.PARTIAL, 0, 0))
    await early.close()
    async with joined(place) as meshes:
        one = meshes[0]
        for peer in (0, 2, -1):
            with pytest.raises(ValueError, match="no peer"):
                one.send(peer, Frame(Kind.PARTIAL, 0, 0))
        for kind in (0, 100, Kind.HELLO, Kind.ABORT, Kind.DONE, Kind.BEAT, 256):
            with pytest.raises(ValueError, match="not a kind of work"):
                one.broadcast(Frame(kind, 0, 0))
        with pytest.raises(ValueError, match="at most 1000 bytes, got 1001"):
            one.send(1, Frame(Kind.PARTIAL, 0, 0, bytes(1001)))
        with pytest.raises(ValueError, match="do not fit the header"):
            one.send(1, Frame(Kind.PARTIAL, 0, 2**32))
        heard = listen(meshes[1])
        one.send(1, Frame(Kind.PARTIAL, 0, 0, bytes(1000)))
        await until(lambda: len(heard) == 1)
    with pytest.raises(RuntimeError, match="before close"):
        one.send(1, Frame(Kind.PARTIAL, 0, 1))
    assert one.counters.frames_sent == 1


@in_town(2, join=False)
async def test_delays_hold_frames_back_in_their_order(place: Town) -> None:
    one, two = place.mesh(0, delays=Delays(0.1, 0.2, 3)), place.mesh(1)
    await asyncio.gather(one.join(), two.join())
    heard: list[tuple[int, float]] = []
    two.on_frame = lambda peer, frame: heard.append((frame.update, time.monotonic() - began))
    back = listen(one)
    began = time.monotonic()
    for update in range(30):
        one.send(1, Frame(Kind.THETA, 0, update))
    two.send(0, Frame(Kind.PARTIAL, 0, 0))
    await until(lambda: bool(back))
    assert not heard  # only its own frames are delayed
    # the last frame waits for the frames before it
    closing = asyncio.ensure_future(one.close())
    await until(lambda: len(heard) == 30)
    await asyncio.gather(closing, two.close())
    assert [update for update, _ in heard] == list(range(30))
    times = [seconds for _, seconds in heard]
    assert times[0] >= 0.1
    assert times[-1] > 0.2  # the largest of 30 draws is above 0.1 + 0.2 / 2
    assert times[-1] - times[0] > 0.02


@in_town(2, join=False)
async def test_an_abort_is_not_delayed(place: Town) -> None:
    async with joined(place, delays=Delays(30.0)) as (one, two):
        one.send(1, Frame(Kind.PARTIAL, 0, 0))
        one.abort(PartyError(0, "it has no more rows"))
        error = await outcome(asyncio.wait_for(two.failed, 5.0))
        assert str(error) == "party 0: it has no more rows"


@in_town(3, beat=0.1, silence=0.3)
async def test_a_loop_that_was_held_up_blames_nobody(meshes: list[Mesh]) -> None:
    for _ in range(2):
        time.sleep(0.4)
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert not any(mesh.failed.done() for mesh in meshes)


@in_town(2, beat=0.05, silence=0.3)
async def test_quiet_peers_are_kept_alive_by_beats(meshes: list[Mesh]) -> None:
    heard = listen(meshes[0])
    await asyncio.sleep(0.7)
    assert not any(mesh.failed.done() for mesh in meshes)
    assert not heard
    assert meshes[0].counters.bytes_received == 0
