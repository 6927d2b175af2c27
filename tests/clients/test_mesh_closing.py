"""Tests of closing a mesh: nothing stays behind."""

import asyncio
import time

from tests.clients.meshes import Town, as_threads, closed, in_town, listen, outcome, town, until
from vertical.transport.frames import Frame, Kind, PartyError
from vertical.transport.mesh import Mesh


@in_town(4, close=0.2)
async def test_a_party_may_close_while_others_work_on(meshes: list[Mesh]) -> None:
    heard = [listen(mesh) for mesh in meshes]
    early = asyncio.ensure_future(meshes[2].close())
    for update in range(20):
        for me in (0, 1, 3):
            meshes[me].broadcast(Frame(Kind.THETA, me, update))
        await asyncio.sleep(0.02)
    await early  # the party stopped waiting for them
    for me in (0, 1, 3):
        assert sum(peer != 2 for peer, _, _ in heard[me]) == 40
    await closed(*meshes)
    assert not any(mesh.failed.done() for mesh in meshes)


@in_town(4, close=20.0)
async def test_closing_is_quick_and_may_be_repeated(meshes: list[Mesh]) -> None:
    began = time.monotonic()
    await closed(*meshes)
    assert time.monotonic() - began < 10.0
    await closed(*meshes)
    meshes[0].abort(PartyError(0, "too late"))
    assert not any(mesh.failed.done() for mesh in meshes)


@in_town(4, close=20.0)
async def test_closing_after_a_failure_waits_no_longer_than_the_news_takes(meshes: list[Mesh]) -> None:
    meshes[1].abort(PartyError(3, "its rows are others"))
    began = time.monotonic()
    await closed(*meshes)
    assert time.monotonic() - began < 10.0
    assert all(mesh.failed.done() for mesh in meshes)


def test_closing_sends_what_the_peer_is_slow_to_read() -> None:
    body = bytes(3_000_000)

    async def talk(place: Town, me: int) -> int:
        mesh = place.mesh(me)
        heard = listen(mesh)
        await mesh.join()
        if me == 0:
            for update in range(4):
                mesh.send(1, Frame(Kind.THETA, 0, update, body))
        else:
            time.sleep(0.3)
            await until(lambda: len(heard) == 4)
        await mesh.close()
        return len(heard)

    with town(2, "tcp", close=5.0) as place:
        assert as_threads(2, lambda me: talk(place, me)) == [0, 4]


@in_town(2)
async def test_what_comes_while_closing_is_not_handed_out(meshes: list[Mesh]) -> None:
    one, two = meshes
    heard = listen(one)
    closing = asyncio.ensure_future(one.close())
    await asyncio.sleep(0)
    two.send(0, Frame(Kind.THETA, 1, 0))
    await two.close()
    await closing
    assert not heard
    assert not one.failed.done()


@in_town(3, join=False, close=0.2)
async def test_leaving_while_others_join_is_a_failure(place: Town) -> None:
    meshes = [place.mesh(me) for me in range(2)]
    joins = [asyncio.ensure_future(outcome(mesh.join())) for mesh in meshes]
    await until(lambda: 1 in meshes[0]._hellos and 0 in meshes[1]._hellos)
    joins[0].cancel()
    await meshes[0].close()
    error = await joins[1]
    assert isinstance(error, PartyError)
    assert error.party == 0
    assert "left before" in error.reason
    await meshes[1].close()
