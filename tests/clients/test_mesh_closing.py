"""A mesh ends, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from clients.vertical.failures import PartyError
from clients.vertical.frames import Frame, Kind
from tests.clients.meshes import Town, alone, as_threads, joined, listen, outcome, town, until


def test_a_party_may_close_while_others_work_on() -> None:
    async def life(place: Town) -> None:
        meshes = [place.mesh(me) for me in range(4)]
        await asyncio.gather(*(mesh.join() for mesh in meshes))
        heard = [listen(mesh) for mesh in meshes]
        early = asyncio.ensure_future(meshes[2].close())
        for update in range(20):
            for mesh in meshes:
                if mesh is not meshes[2]:
                    mesh.broadcast(Frame(Kind.THETA, mesh.me, update))
            await asyncio.sleep(0.02)
        await early  # it gave up waiting for them
        for me in (0, 1, 3):
            assert sum(peer != 2 for peer, _, _ in heard[me]) == 40
        await asyncio.gather(*(mesh.close() for mesh in meshes))
        assert not any(mesh.failed.done() for mesh in meshes)

    with town(4, close=0.2) as place:
        alone(place, life)


def test_closing_is_quick_and_may_be_repeated() -> None:
    async def life(place: Town) -> None:
        async with joined(place) as meshes:
            began = time.monotonic()
            await asyncio.gather(*(mesh.close() for mesh in meshes))
            assert time.monotonic() - began < 1.0
            await asyncio.gather(*(mesh.close() for mesh in meshes))
            assert not any(mesh.failed.done() for mesh in meshes)
            meshes[0].abort(PartyError(0, "too late"))
            assert not meshes[0].failed.done()

    with town(4) as place:
        alone(place, life)


def test_closing_after_a_failure_waits_no_longer_than_the_news_takes() -> None:
    async def life(place: Town) -> None:
        async with joined(place) as meshes:
            meshes[1].abort(PartyError(3, "its rows are others"))
            began = time.monotonic()
            await asyncio.gather(*(mesh.close() for mesh in meshes))
            assert time.monotonic() - began < 10.0
            assert all(mesh.failed.done() for mesh in meshes)

    with town(4, close=20.0) as place:
        alone(place, life)


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


def test_what_comes_while_closing_is_not_handed_out() -> None:
    async def life(place: Town) -> None:
        async with joined(place) as (one, two):
            heard = listen(one)
            closing = asyncio.ensure_future(one.close())
            await asyncio.sleep(0)
            two.send(0, Frame(Kind.THETA, 1, 0))
            await two.close()
            await closing
            assert not heard
            assert not one.failed.done()

    with town(2) as place:
        alone(place, life)


def test_an_unused_mesh_can_be_closed() -> None:
    async def life(place: Town) -> None:
        await place.mesh(0).close()

    with town(2) as place:
        alone(place, life)


def test_nothing_stays_behind_on_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def life(place: Town) -> None:
        async with joined(place):
            assert len(list(tmp_path.iterdir())) == 0

    with town(3) as place:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        handles = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        alone(place, life)
        assert len(os.listdir("/proc/self/fd")) == handles  # noqa: PTH208


def test_a_cancelled_close_leaves_nothing() -> None:
    async def life(place: Town) -> None:
        meshes = [place.mesh(me) for me in range(2)]
        await asyncio.gather(*(mesh.join() for mesh in meshes))
        closing = asyncio.ensure_future(meshes[0].close())
        await asyncio.sleep(0.05)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await meshes[1].close()

    with town(2) as place:
        alone(place, life)


def test_closing_right_after_a_loss_leaves_no_timer() -> None:
    async def life(place: Town) -> None:
        async with joined(place) as (one, two):
            link = two._links[0]
            assert link is not None
            link.close()
            await asyncio.sleep(0.05)
            assert not one.failed.done()  # it waits for who may know more

    with town(2, grace=60.0, close=0.1) as place:
        alone(place, life)


def test_leaving_while_others_join_is_a_failure() -> None:
    async def life(place: Town) -> None:
        meshes = [place.mesh(me) for me in range(2)]
        joins = [asyncio.ensure_future(outcome(mesh.join())) for mesh in meshes]
        await asyncio.sleep(0.1)
        joins[0].cancel()
        await meshes[0].close()
        error = await joins[1]
        assert isinstance(error, PartyError)
        assert error.party == 0
        assert "left before" in error.reason
        await meshes[1].close()

    with town(3, close=0.2) as place:
        asyncio.run(life(replace(place)))
