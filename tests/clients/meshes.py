"""Meshes of parties for the tests: in one event loop, in threads, or in processes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar

import pytest

from simulations.engines.addresses import socket_folder
from tests.battery.ports import addresses_for
from vertical.transport.addresses import Address
from vertical.transport.endpoint import Endpoint, Limits
from vertical.transport.frames import Frame, Kind, PartyError
from vertical.transport.identity import Identity
from vertical.transport.links import Link
from vertical.transport.mesh import Mesh

T = TypeVar("T")
Said = list[tuple[int, int, bytes]]

# generous limits where a failure shows at once; short limits where only the clock can detect it
QUICK = Limits(join=8.0, beat=0.2, silence=6.0, close=2.0)


@cache
def identities(parties: int) -> tuple[Identity, ...]:
    """Return the parties' identities, the same for every test."""
    return tuple(Identity.create(f"party {party}") for party in range(parties))


@dataclass(frozen=True)
class Town:
    """The parties' addresses and identities."""

    addresses: list[Address]
    identities: tuple[Identity, ...]
    limits: Limits = QUICK
    serial: int = 7
    verbose: bool = True

    @property
    def parties(self) -> int:
        return len(self.addresses)

    @property
    def certificates(self) -> list[bytes]:
        return [identity.certificate for identity in self.identities]

    def mesh(self, me: int, **options: Any) -> Mesh:
        own, limits = self.identities[me], self.limits
        endpoint = Endpoint(self.addresses, own, self.certificates, limits=limits, verbose=self.verbose)
        return Mesh(me, endpoint, self.serial, **{"hello": f"I am {me}".encode(), **options})

    def with_limits(self, **limits: float) -> Town:
        return replace(self, limits=replace(self.limits, **limits))

    def with_impostor(self, party: int) -> Town:
        """Return the town as seen by a party whose certificate is unknown to the other parties."""
        strangers = list(self.identities)
        strangers[party] = Identity.create("impostor")
        return replace(self, identities=tuple(strangers))


@contextlib.contextmanager
def town(parties: int, transport: str = "unix", **limits: float) -> Iterator[Town]:
    """Yield a town with its own addresses; at the end, require an empty socket folder."""
    with socket_folder() as folder:
        yield Town(addresses_for(parties, folder, transport), identities(parties)).with_limits(**limits)
        assert not list(folder.iterdir())


@contextlib.asynccontextmanager
async def joined(place: Town, **options: Any) -> AsyncIterator[list[Mesh]]:
    """Yield the joined meshes of all parties in this loop, and close them at the end."""
    meshes = [place.mesh(party, **options) for party in range(place.parties)]
    try:
        await asyncio.gather(*(mesh.join() for mesh in meshes))
        yield meshes
    finally:
        await closed(*meshes)


async def closed(*meshes: Mesh) -> None:
    """Close all meshes."""
    await asyncio.gather(*(mesh.close() for mesh in meshes))


async def outcome(awaited: Awaitable[T]) -> T | PartyError:
    """Return the result, or the failure."""
    try:
        return await awaited
    except PartyError as error:
        return error


def as_threads(parties: int, party: Callable[[int], Awaitable[T]]) -> list[T | PartyError]:
    """Run each party in its own thread and event loop."""
    results: dict[int, T | PartyError] = {}

    async def life(me: int) -> T | PartyError:
        return await outcome(party(me))

    def live(me: int) -> None:
        results[me] = asyncio.run(life(me))

    threads = [threading.Thread(target=live, args=(me,)) for me in range(parties)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    return [results[me] for me in range(parties)]


async def converse(mesh: Mesh, frames: int) -> dict[int, list[tuple[int, int, int, bytes]]]:
    """Join, send `frames` to every peer in bursts, and return the frames that arrived from each peer once all have."""
    heard: dict[int, list[tuple[int, int, int, bytes]]] = {}
    everything = asyncio.Event()

    def hear(peer: int, frame: Frame) -> None:
        heard.setdefault(peer, []).append((frame.kind, frame.active, frame.update, bytes(frame.body)))
        if sum(map(len, heard.values())) == frames * (mesh.parties - 1):
            everything.set()

    mesh.on_frame = hear
    try:
        await mesh.join()
        for update in range(frames):
            for peer in range(mesh.parties):
                if peer != mesh.me:
                    mesh.send(peer, Frame(Kind.PARTIAL, mesh.me, update, said(mesh.me, peer, update)))
            if update % 16 == 15:
                await asyncio.sleep(0)
        work = asyncio.ensure_future(everything.wait())
        await asyncio.wait({work, mesh.failed}, return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        if mesh.failed.done():
            mesh.failed.result()
        return heard
    finally:
        await mesh.close()


def said(me: int, peer: int, update: int) -> bytes:
    """Return the body of a frame of `converse`, of varying length, including zero."""
    return f"{me} to {peer}: {update}".encode() * (update * update % 97)


def all_heard(me: int, parties: int, frames: int) -> dict[int, list[tuple[int, int, int, bytes]]]:
    """Return the frames that `converse` must return."""
    return {
        peer: [(Kind.PARTIAL, peer, update, said(peer, me, update)) for update in range(frames)]
        for peer in range(parties)
        if peer != me
    }


def alone(place: Town, life: Callable[[Town], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine in a new loop, which must be empty afterwards."""

    async def watched() -> None:
        loop: Any = asyncio.get_running_loop()
        before = len(loop._selector.get_map())
        await life(place)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert len(loop._selector.get_map()) == before
        assert not [timer for timer in loop._scheduled if not timer.cancelled()]

    asyncio.run(watched(), debug=False)


def listen(mesh: Mesh) -> Said:
    """Return a list that fills with the frames that the mesh delivers."""
    heard: Said = []
    mesh.on_frame = lambda peer, frame: heard.append((peer, frame.update, bytes(frame.body)))
    return heard


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait for the condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


async def failures(meshes: list[Mesh]) -> list[PartyError]:
    """Return the error of each mesh."""
    errors = await asyncio.wait_for(asyncio.gather(*(outcome(mesh.failed) for mesh in meshes)), 10.0)
    assert all(isinstance(error, PartyError) for error in errors)
    return [error for error in errors if isinstance(error, PartyError)]


def link(mesh: Mesh, peer: int) -> Link:
    """Return one party's connection to another party."""
    found = mesh._links[peer]
    assert found is not None
    return found


def in_town(parties: int, *transports: str, join: bool = True, **limits: float) -> Callable[[Any], Any]:
    """Run an async test in a new loop and town, once for each transport.

    The test's first parameter is the meshes, or the town without `join`.
    """

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @wraps(test)
        def run(transport: str = (transports or ("unix",))[0], **given: Any) -> None:
            async def life(place: Town) -> None:
                if not join:
                    await test(place, **given)
                    return
                async with joined(place) as meshes:
                    await test(meshes, **given)

            with town(parties, transport, **limits) as place:
                alone(place, life)

        asked = list(signature(test).parameters.values())[1:]
        if len(transports) > 1:
            asked.append(Parameter("transport", Parameter.KEYWORD_ONLY))
            run = pytest.mark.parametrize("transport", transports)(run)
        run.__signature__ = Signature(asked)  # type: ignore[attr-defined]
        return run

    return decorate


def occupy(address: Address) -> socket.socket:
    """Listen at an address in the place of its party."""
    if address.kind == "unix":
        other = socket.socket(socket.AF_UNIX)
        other.bind(address.text)
        other.listen()
        return other
    return socket.create_server((address.host, address.port))
