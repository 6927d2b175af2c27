"""Tests of joining a mesh, including connections from strangers."""

import asyncio
import socket
import ssl
from dataclasses import replace

import pytest

from tests.clients.meshes import Town, closed, in_town, outcome, until
from vertical.transport.addresses import connect
from vertical.transport.frames import PartyError
from vertical.transport.identity import client_context
from vertical.transport.mesh import Mesh


@in_town(4, join=False)
async def test_each_hello_arrives_as_its_senders_whoever_comes_late(place: Town) -> None:
    order = [3, 1, 0, 2]
    meshes = [place.mesh(me) for me in range(4)]

    async def come(mesh: Mesh) -> dict[int, bytes]:
        await asyncio.sleep(0.05 * order.index(mesh.me))
        return await mesh.join()

    for me, got in enumerate(await asyncio.gather(*map(come, meshes))):
        assert got == {peer: f"I am {peer}".encode() for peer in range(4) if peer != me}
    await closed(*meshes)


async def listening(mesh: Mesh) -> asyncio.Future[dict[int, bytes] | PartyError]:
    """Return a joining mesh that already listens."""
    joining = asyncio.ensure_future(outcome(mesh.join()))
    await asyncio.sleep(0.05)
    return joining


@in_town(2, "unix", "tcp", join=False)
async def test_strangers_at_the_door_disturb_nobody(place: Town) -> None:
    one, two = place.mesh(0), place.mesh(1)
    first = await listening(one)
    loop = asyncio.get_running_loop()
    silent, babbler, left = [await connect(place.addresses[0]) for _ in range(3)]
    await loop.sock_sendall(babbler, b"GET / HTTP/1.1\r\n\r\n" * 20)
    left.close()
    stranger = client_context(place.with_impostor(1).identities[1], [place.certificates[0]])
    for name in ("party-1", "party-99", "party-x", "elsewhere"):
        await loop.run_in_executor(None, knock, place, stranger, name)
    assert await two.join() == {0: b"I am 0"}
    assert await first == {1: b"I am 1"}
    await closed(one, two)
    assert not one.failed.done()
    silent.close()
    babbler.close()
    await loop.shutdown_default_executor()


def knock(place: Town, context: ssl.SSLContext, name: str) -> None:
    """Connect to party 0 and expect a rejection."""
    address = place.addresses[0]
    family = socket.AF_UNIX if address.kind == "unix" else socket.AF_INET
    with socket.socket(family) as plain:
        plain.connect(address.text if address.kind == "unix" else (address.host, address.port))
        plain.settimeout(5.0)
        with pytest.raises(OSError), context.wrap_socket(plain, server_hostname=name) as tls:  # noqa: PT011, PT012
            tls.recv(1)
            raise AssertionError("let in")


@in_town(2, join=False, beat=0.05, silence=0.2, close=0.1)
async def test_a_silent_stranger_is_shown_out(place: Town) -> None:
    one = place.with_limits(join=0.8).mesh(0)
    first = await listening(one)
    with await connect(place.addresses[0]) as silent:
        assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(silent, 1), 2.0) == b""
    assert not first.done()
    error = await first
    assert isinstance(error, PartyError)
    assert "1 connection(s) of strangers were refused" in error.reason
    await one.close()


@in_town(2, "unix", "tcp", join=False)
async def test_another_program_at_the_address_is_no_refusal(place: Town) -> None:
    refusals: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        refusals.append(await reader.read(5))
        writer.write(bytes.fromhex("15030300020246"))  # an alert: protocol version
        writer.close()

    address = place.addresses[0]
    if address.kind == "unix":
        other = await asyncio.start_unix_server(refuse, address.text)
    else:
        other = await asyncio.start_server(refuse, address.host, address.port)
    one, two = place.mesh(1), place.mesh(0)
    joining = asyncio.ensure_future(one.join())
    await until(lambda: len(refusals) >= 2)
    other.close()
    await other.wait_closed()
    await asyncio.gather(joining, two.join())
    await closed(one, two)


@in_town(2, join=False, close=0.3)
async def test_an_earlier_attempt_gives_way_to_a_later_one(place: Town) -> None:
    later = replace(place, serial=8)
    old, new, other = place.mesh(1, hello=b"stale"), later.mesh(0), later.mesh(1)
    stale = await listening(old)
    fresh = asyncio.ensure_future(new.join())
    error = await stale
    assert isinstance(error, PartyError)
    assert error.party == 0
    assert "serial 8" in error.reason
    assert "is at serial 7" in error.reason
    await old.close()
    hellos, _ = await asyncio.gather(fresh, other.join())
    assert hellos == {1: b"I am 1"}
    await closed(new, other)
    assert not new.failed.done()


@pytest.mark.parametrize("strangers", [60, 1000])
@in_town(2, "tcp", join=False)
async def test_idle_connections_do_not_keep_a_party_out(place: Town, strangers: int) -> None:
    one, two = place.mesh(0), place.mesh(1)
    first = await listening(one)
    idle, outgoing = [], ssl.MemoryBIO()
    context = client_context(place.identities[1], [place.certificates[0]])
    stranger = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="party-1")
    with pytest.raises(ssl.SSLWantReadError):
        stranger.do_handshake()
    loop, handshake = asyncio.get_running_loop(), outgoing.read()
    for number in range(strangers):
        idle.append(await connect(place.addresses[0]))
        if number < 20:
            await loop.sock_sendall(idle[-1], handshake)
        await asyncio.sleep(0)
    began = loop.time()
    while await loop.sock_recv(idle[0], 4096):  # until the oldest connection makes room for the last
        pass
    with pytest.raises(BlockingIOError):
        idle[-1].recv(1)
    assert not one._connector.notes._claims  # rejected connections are forgotten
    assert await two.join() == {0: b"I am 0"}
    assert await first == {1: b"I am 1"}
    assert loop.time() - began < 5.0
    await closed(one, two)
    for connection in idle:
        connection.close()


@in_town(2, "tcp", join=False)
async def test_a_connection_has_a_second_to_prove_who_it_is(place: Town) -> None:
    one = place.mesh(0)
    joining = await listening(one)
    loop = asyncio.get_running_loop()
    idle, began = await connect(place.addresses[0]), loop.time()
    assert await loop.sock_recv(idle, 1) == b""
    assert 0.8 < loop.time() - began < 3.0
    idle.close()
    one.abort(PartyError(0, "enough"))
    await joining
    await closed(one)
