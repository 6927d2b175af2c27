"""A mesh comes about, whoever else knocks."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import replace

import pytest

from clients.vertical.addresses import Address, connect
from clients.vertical.failures import PartyError
from clients.vertical.identity import client_context
from tests.clients.meshes import Town, alone, joined, outcome, town, until


def test_each_hello_arrives_as_its_senders() -> None:
    async def life(place: Town) -> None:
        meshes = [place.mesh(me) for me in range(4)]
        hellos = await asyncio.gather(*(mesh.join() for mesh in meshes))
        for me, got in enumerate(hellos):
            assert got == {peer: f"I am {peer}".encode() for peer in range(4) if peer != me}
        await asyncio.gather(*(mesh.close() for mesh in meshes))

    with town(4) as place:
        alone(place, life)


def test_whoever_comes_late_is_waited_for() -> None:
    async def life(place: Town) -> None:
        order = [3, 1, 0, 2]
        meshes = {me: place.mesh(me) for me in order}

        async def come(me: int) -> dict[int, bytes]:
            await asyncio.sleep(0.08 * order.index(me))
            return await meshes[me].join()

        assert all(len(got) == 3 for got in await asyncio.gather(*map(come, order)))
        await asyncio.gather(*(mesh.close() for mesh in meshes.values()))

    with town(4) as place:
        alone(place, life)


def test_a_mesh_joins_once() -> None:
    async def life(place: Town) -> None:
        async with joined(place) as meshes:
            with pytest.raises(RuntimeError, match="joins once"):
                await meshes[0].join()
        with pytest.raises(RuntimeError, match="joins once"):
            await meshes[0].join()

    with town(2) as place:
        alone(place, life)


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_strangers_at_the_door_disturb_nobody(transport: str) -> None:
    async def life(place: Town) -> None:
        one, two = place.mesh(0), place.mesh(1)
        first = asyncio.ensure_future(one.join())
        await asyncio.sleep(0.05)
        loop = asyncio.get_running_loop()
        silent = await connect(place.addresses[0])
        babbler = await connect(place.addresses[0])
        await loop.sock_sendall(babbler, b"GET / HTTP/1.1\r\n\r\n" * 20)
        left = await connect(place.addresses[0])
        left.close()
        for name in ("party-1", "party-99", "party-x", "elsewhere"):
            stranger = client_context(place.with_impostor(1).identities[1], [place.certificates[0]])
            await loop.run_in_executor(None, knock, place, stranger, name)
        await asyncio.gather(first, two.join())
        await asyncio.gather(one.close(), two.close())
        assert not one.failed.done()
        silent.close()
        babbler.close()
        await loop.shutdown_default_executor()

    with town(2, transport) as place:
        alone(place, life)


def knock(place: Town, context: ssl.SSLContext, name: str) -> None:
    """Connect to party 0 and be refused."""
    address = place.addresses[0]
    family = socket.AF_UNIX if address.kind == "unix" else socket.AF_INET
    with socket.socket(family) as plain:
        plain.connect(address.text if address.kind == "unix" else (address.host, address.port))
        plain.settimeout(5.0)
        with pytest.raises(OSError), context.wrap_socket(plain, server_hostname=name) as tls:  # noqa: PT011, PT012
            tls.recv(1)
            raise AssertionError("let in")


def test_a_silent_stranger_is_shown_out() -> None:
    async def life(place: Town) -> None:
        one = place.mesh(0)
        first = asyncio.ensure_future(outcome(one.join()))
        await asyncio.sleep(0.05)
        silent = await connect(place.addresses[0])
        assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(silent, 1), 2.0) == b""
        assert not first.done()
        error = await first
        assert isinstance(error, PartyError)
        assert "1 connection(s) of strangers were refused" in error.reason
        silent.close()
        await one.close()

    with town(2, beat=0.05, silence=0.2, join=0.6, close=0.1) as place:
        alone(place, life)


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_another_program_at_the_address_is_no_refusal(transport: str) -> None:
    async def life(place: Town) -> None:
        refusals: list[bytes] = []

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            refusals.append(await reader.read(5))
            writer.write(bytes.fromhex("15030300020246"))  # an alert: protocol version
            writer.close()

        address = place.addresses[0]
        if transport == "unix":
            other = await asyncio.start_unix_server(refuse, address.text)
        else:
            other = await asyncio.start_server(refuse, address.host, address.port)
        one, two = place.mesh(1), place.mesh(0)
        joining = asyncio.ensure_future(one.join())
        await until(lambda: len(refusals) >= 2)
        other.close()
        await other.wait_closed()
        await asyncio.gather(joining, two.join())
        await asyncio.gather(one.close(), two.close())

    with town(2, transport) as place:
        asyncio.run(life(place))


def test_an_earlier_attempt_gives_way_to_a_later_one() -> None:
    async def life(place: Town) -> None:
        later = replace(place, serial=8)
        old = place.mesh(1, hello=b"stale")
        stale = asyncio.ensure_future(outcome(old.join()))
        await asyncio.sleep(0.05)
        new = later.mesh(0)
        fresh = asyncio.ensure_future(new.join())
        error = await stale
        assert isinstance(error, PartyError)
        assert error.party == 0
        assert "serial 8" in error.reason
        assert "this is 7" in error.reason
        await old.close()
        other = later.mesh(1)
        hellos, _ = await asyncio.gather(fresh, other.join())
        assert hellos == {1: b"I am 1"}
        await asyncio.gather(new.close(), other.close())
        assert not new.failed.done()

    with town(2, close=0.3) as place:
        alone(place, life)


def test_an_address_just_being_left_is_waited_for() -> None:
    async def life(place: Town) -> None:
        old = place.mesh(0)
        first = asyncio.ensure_future(outcome(old.join()))
        await asyncio.sleep(0.05)
        new = place.mesh(0)
        second = asyncio.ensure_future(new.join())
        await asyncio.sleep(0.1)
        first.cancel()
        old._tear_down()
        await old._door.close()
        peer = place.mesh(1)
        await asyncio.gather(second, peer.join())
        await asyncio.gather(new.close(), peer.close())

    with town(2, "tcp") as place:
        alone(place, life)


def test_where_to_listen_may_differ_from_where_one_is_found() -> None:
    async def life(place: Town) -> None:
        found = place.addresses[0]
        everywhere = Address("tcp", f"0.0.0.0:{found.port}")
        meshes = [place.mesh(0, bind=everywhere), place.mesh(1)]
        await asyncio.gather(*(mesh.join() for mesh in meshes))
        await asyncio.gather(*(mesh.close() for mesh in meshes))

    with town(2, "tcp") as place:
        alone(place, life)
