"""The private folders of the Unix sockets by which parties on one host connect."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from problems.files import make_private, socket_base
from vertical.transport.addresses import Address


def run_folder(salt: bytes) -> Path:
    """Return the folder of a run's sockets on one host: a short path, the same for all parties.

    Args:
        salt: The run's random bytes, which the server sends to all parties.
    """
    return socket_base() / f"vfb2-{hashlib.sha256(salt).hexdigest()[:16]}"


def host_mark() -> bytes:
    """Return 32 bytes that are equal for all parties that can share a folder: same machine, file system and user."""
    base = socket_base().stat()
    boot = Path("/proc/sys/kernel/random/boot_id")
    machine = boot.read_text("ascii").strip() if boot.exists() else os.uname().nodename
    return hashlib.sha256(f"{machine} {base.st_dev} {base.st_ino} {os.getuid()}".encode()).digest()


@contextlib.contextmanager
def sockets(address: Address) -> Iterator[None]:
    """Provide a private folder for a Unix socket. The last party that leaves the folder removes it.

    Args:
        address: The address of the socket. For other addresses, the function does nothing.

    Raises:
        PermissionError: The folder exists and is not private to this user.
    """
    if address.kind != "unix":
        yield
        return
    marker = Path(f"{address.text}.here")
    _enter(marker)
    try:
        yield
    finally:
        marker.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other parties still use the folder
            marker.parent.rmdir()


def _enter(marker: Path) -> None:
    """Create the folder if it is missing, and in it the marker, a file that keeps other parties from removing it."""
    while True:
        try:
            make_private(marker.parent)
            marker.touch(mode=0o600)
            return
        except FileNotFoundError:  # the last party in the folder has just removed it
            continue
