"""Ports and addresses that simultaneous tests never share."""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import IO

from simulations.engines.addresses import local_addresses
from vertical.transport.addresses import Address

# below the system's range of ephemeral ports
PORTS = range(20_000, 32_000)
LOCKS = Path(tempfile.gettempdir()) / f"florilegium-ports-{os.getuid()}"
_held: list[IO[str]] = []


def free_ports(count: int) -> list[int]:
    """Return free ports of the loopback interface that no other test gets while this process lives.

    This process locks a file for each port, so other processes skip it.
    """
    LOCKS.mkdir(exist_ok=True)
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if len(found) == count:
            return found
        lock = (LOCKS / str(port)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as one:
                one.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            continue
        _held.append(lock)
        found.append(port)
    raise OSError(f"no {count} ports of {PORTS.start} to {PORTS.stop - 1} are free")


def addresses_for(parties: int, folder: Path, transport: str) -> list[Address]:
    """Return addresses of parties on this machine: Unix sockets in the folder, or free ports for "tcp"."""
    if transport == "tcp":
        return [Address("tcp", f"127.0.0.1:{port}") for port in free_ports(parties)]
    return local_addresses(parties, folder)
