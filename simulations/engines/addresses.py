"""Addresses on this machine for parties without a server, in attacks, benchmarks and tests."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from problems.files import socket_base
from vertical.transport.addresses import Address, free_port


@contextlib.contextmanager
def socket_folder() -> Iterator[Path]:
    """Return a private folder with a short path for Unix sockets, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="vfl-", dir=socket_base(), ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def local_addresses(parties: int, folder: Path | None = None) -> list[Address]:
    """Return addresses of parties: Unix sockets in `folder`, or free TCP ports of 127.0.0.1 without a folder."""
    if folder is None:
        return [Address("tcp", f"127.0.0.1:{free_port()}") for _ in range(parties)]
    return [Address("unix", str(folder / f"{party}.sock")) for party in range(parties)]
