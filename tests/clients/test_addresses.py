"""Tests of addresses and their sockets."""

import asyncio
import socket
import stat
from pathlib import Path

import pytest

from simulations.engines.addresses import local_addresses, socket_folder
from vertical.transport.addresses import Address, connect, listen, stop_listening


@pytest.mark.parametrize(
    "text", ["unix:/run/p0.sock", "tcp:10.0.0.1:7000", "tcp:party.example:1", "tcp:[::1]:65535", "none:3"]
)
def test_a_text_is_given_back(text: str) -> None:
    address = Address.parse(text)
    assert str(address) == text
    if address.kind == "tcp":
        assert text in (f"tcp:{address.host}:{address.port}", f"tcp:[{address.host}]:{address.port}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "unix:/path, tcp:host:port or none:party"),
        ("udp:a:1", "unix:/path, tcp:host:port or none:party"),
        ("unix:relative.sock", "absolute path"),
        ("unix:/" + "x" * 99, "shorter than 100"),
        ("tcp:host", "a port of 1 to 65535"),
        ("tcp:host:0", "a port of 1 to 65535"),
        ("tcp:host:65536", "a port of 1 to 65535"),
        ("tcp:host:²", "a port of 1 to 65535"),
        ("tcp::80", "a port of 1 to 65535"),
        ("tcp:::1:80", "needs brackets"),
        ("tcp:" + "x" * 64 + ":80", "must be a host name"),
        ("tcp:a..b:80", "must be a host name"),
    ],
)
def test_what_is_no_address_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Address.parse(text)


def test_a_socket_folder_is_private_short_and_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket_folder() as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "left").touch()
    assert not folder.exists()
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with socket_folder() as folder:
        Address("unix", str(folder / "99.sock"))


@pytest.mark.parametrize("where", ["unix", "tcp", "name", "ipv6"])
def test_what_listens_can_be_reached(where: str) -> None:
    async def talk(folder: Path) -> None:
        address = local_addresses(1, folder if where == "unix" else None)[0]
        if where in ("name", "ipv6"):
            address = Address("tcp", f"{'localhost' if where == 'name' else '[::1]'}:{address.port}")
        with pytest.raises(OSError):  # noqa: PT011
            await connect(address)
        listener = await listen(address)
        try:
            with await connect(address) as near:
                far, _ = listener.accept()
                with far:
                    far.sendall(b"well")
                    assert await asyncio.get_running_loop().sock_recv(near, 10) == b"well"
                assert not near.getblocking()
                if where != "unix":
                    assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            with pytest.raises(OSError, match="in use"):
                await listen(address)
        finally:
            stop_listening(listener)
        assert not list(folder.iterdir())
        # the address is free again at once
        stop_listening(await listen(address))

    if where == "ipv6" and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with socket_folder() as folder:
        asyncio.run(talk(folder))


def test_a_socket_file_left_behind_is_replaced_and_nothing_else_is() -> None:
    async def take(folder: Path) -> None:
        path = folder / "p.sock"
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        stop_listening(await listen(Address("unix", str(path))))
        path.write_text("somebody's notes")
        with pytest.raises(OSError, match="in use"):
            await listen(Address("unix", str(path)))
        assert path.read_text() == "somebody's notes"

    with socket_folder() as folder:
        asyncio.run(take(folder))
