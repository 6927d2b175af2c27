"""A party's address (a Unix socket on the same machine, TCP, or none), and the sockets for it."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from problems.files import LONGEST_SOCKET_PATH

# the kind of address of a party to which no other party can connect
UNREACHABLE = "none"
_ALLOWED = "unix:/path, tcp:host:port or none:party"


@dataclass(frozen=True)
class Address:
    """A party's address.

    Attributes:
        kind: "unix", "tcp" or, if the party is unreachable, "none".
        text: The socket's path, "host:port" (an IPv6 host in brackets), or the party's index.
    """

    kind: str
    text: str

    def __post_init__(self) -> None:
        if self.kind == "unix":
            if not self.text.startswith("/"):
                raise ValueError(f"the path of a Unix socket must be an absolute path, got {self.text!r}")
            if len(self.text.encode()) >= LONGEST_SOCKET_PATH:
                raise ValueError(
                    f"the path of a Unix socket must be shorter than {LONGEST_SOCKET_PATH} bytes, got "
                    f"{len(self.text.encode())}: {self.text!r}; use a folder with a shorter path"
                )
        elif self.kind == "tcp":
            self._split()
        elif self.kind != UNREACHABLE:
            raise ValueError(f"an address must be {_ALLOWED}, got {self.kind}:{self.text}")

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read "unix:/path", "tcp:host:port" or "none:party".

        Raises:
            ValueError: The text is not an address.
        """
        kind, colon, content = text.partition(":")
        if not colon:
            raise ValueError(f"an address must be {_ALLOWED}, got {text!r}")
        return cls(kind, content)

    def __str__(self) -> str:
        return f"{self.kind}:{self.text}"

    @property
    def host(self) -> str:
        """The host of a TCP address, without brackets."""
        return self._split()[0]

    @property
    def port(self) -> int:
        """The port of a TCP address."""
        return self._split()[1]

    def _split(self) -> tuple[str, int]:
        host, _, port = self.text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(f"an IPv6 host needs brackets: write tcp:[{host}]:{port} instead of tcp:{self.text}")
        try:
            host.encode("idna")
        except UnicodeError as error:
            raise ValueError(f"the host of an address must be a host name, got {host!r}: {error}") from error
        if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError(f"a TCP address must be tcp:host:port with a port of 1 to 65535, got tcp:{self.text}")
        return host, int(port)


def free_port() -> int:
    """Return a free TCP port of 127.0.0.1, which the system reserves for about a minute.

    The function makes and closes a connection, which keeps the port in the state TIME_WAIT. In this state the system
    does not assign the port to programs that ask for any free port, but `listen` can use it.
    """
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        server.accept()[0].close()
        return int(server.getsockname()[1])


async def listen(address: Address, patience: float = 0.0) -> socket.socket:
    """Return a listening, non-blocking socket. A socket file of a process that has ended is replaced.

    Args:
        address: The address.
        patience: The seconds to wait for an address that is in use.

    Raises:
        OSError: The address is not available.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while True:
        try:
            return await _listen(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or loop.time() >= deadline:
                raise
        await asyncio.sleep(0.05)


async def _listen(address: Address) -> socket.socket:
    family, target = await _resolve(address, socket.AI_PASSIVE)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family != socket.AF_UNIX:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            listener.bind(target)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or family != socket.AF_UNIX or not _left_behind(address.text):
                raise
            Path(address.text).unlink(missing_ok=True)
            listener.bind(target)
        listener.listen(128)
        listener.setblocking(False)
        return listener
    except BaseException:
        listener.close()
        raise


async def connect(address: Address) -> socket.socket:
    """Return a connected, non-blocking socket.

    Raises:
        OSError: No process listens at the address.
    """
    family, target = await _resolve(address)
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, target)
        if address.kind == "tcp" and connection.getsockname() == connection.getpeername():
            # without a listener, the kernel may choose the destination port as the source port
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the connection reached itself")
        return prepare(connection)
    except BaseException:
        connection.close()
        raise


def prepare(connection: socket.socket) -> socket.socket:
    """Make a connection non-blocking, and make it send small writes at once."""
    connection.setblocking(False)
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def stop_listening(listener: socket.socket) -> None:
    """Close a listener and remove its socket file."""
    if listener.family == socket.AF_UNIX:
        # remove the file first: after the close, the name may belong to another socket
        Path(listener.getsockname()).unlink(missing_ok=True)
    listener.close()


def reason_of(error: OSError) -> str:
    """Return the reason of an error, without the addresses that asyncio adds; "nothing" for a timeout."""
    if isinstance(error.errno, int) and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or "nothing"


def _left_behind(path: str) -> bool:
    """Return whether no process listens at a socket file."""
    try:
        if not stat.S_ISSOCK(Path(path).lstat().st_mode):
            return False
    except FileNotFoundError:
        return True
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) in (errno.ECONNREFUSED, errno.ENOENT)


async def _resolve(address: Address, flags: int = 0) -> tuple[socket.AddressFamily, str | tuple[str, int]]:
    """Return a socket's family, and its path or numeric address. Only host names are looked up."""
    if address.kind == "unix":
        return socket.AF_UNIX, address.text
    host, port = address.host, address.port
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        # IPv4 first: the two sides must choose the same family
        family, _, _, _, target = min(entries, key=lambda entry: entry[0] != socket.AF_INET)
        return family, (str(target[0]), int(target[1]))
    return (socket.AF_INET if version == 4 else socket.AF_INET6), (host, port)
