"""Addresses on this machine at which the parties of a vertical run listen, for benchmarks, attacks and tests."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from problems.files import socket_base
from vertical.transport.addresses import Address, free_port


@contextlib.contextmanager
def socket_folder() -> Iterator[Path]:
    """Yield a private folder for Unix sockets, with a short path. The folder is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="vfl-", dir=socket_base(), ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def local_addresses(parties: int, folder: Path | None = None) -> list[Address]:
    """Return an address for each party: a Unix socket in ``folder`` or, without a folder, a free port of 127.0.0.1."""
    if folder is None:
        return [Address("tcp", f"127.0.0.1:{free_port()}") for _ in range(parties)]
    return [Address("unix", str(folder / f"{party}.sock")) for party in range(parties)]
