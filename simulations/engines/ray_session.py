"""A new local Ray or a joined cluster, without output, usage statistics and dashboard."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Read by Ray when it is imported or started.
os.environ.update(
    RAY_USAGE_STATS_ENABLED="0",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",  # a worker without a share of a GPU sees the GPU that a plain run sees
    RAY_prestart_worker_first_driver="0",  # idle workers would slow the first rounds down
    RAY_worker_niceness="0",  # workers get the same share of a busy machine as a plain run
)

import ray

from apps.config import ConfigError

_CONNECT_SECONDS = 10.0


@contextlib.contextmanager
def open_ray(cpus: int | None, address: str, *, workers_log: bool = False, store: int | None = None) -> Iterator[None]:
    """Start a local Ray, which ends with the block, or join a cluster and leave it afterwards.

    Args:
        cpus: The number of workers that a local Ray may run at once. None: the machine's CPUs.
        address: The address of a cluster's head, or "auto" for a Ray on this machine. Empty: a new local Ray.
        workers_log: Whether the workers' output appears here.
        store: The bytes of a local Ray's object store. None: Ray's default.

    Raises:
        ConfigError: There is no Ray at the address, or a Ray runs in this process already.
    """
    if ray.is_initialized():
        got = "a Ray that runs in this process already"
        raise ConfigError(
            "Ray", got=got, allowed="no running Ray, since this starts or joins one", hint="end the running Ray"
        )
    quiet: dict[str, Any] = {"log_to_driver": workers_log, "logging_level": logging.CRITICAL}
    logging.getLogger("ray").setLevel(logging.CRITICAL)  # the caller reports errors
    # Ray puts this process's folder first in its workers' module search path; a user's may have an ``apps/``.
    ours = Path(__file__).resolve().parents[2]
    try:
        try:
            if address:
                _reach(address)
            with contextlib.chdir(ours):
                if address:
                    ray.init(address=address, **quiet)
                else:  # without "local" Ray uses an address in the environment or of the last ``ray start``
                    ray.init("local", num_cpus=cpus, include_dashboard=False, object_store_memory=store, **quiet)
        except (OSError, ValueError) as error:
            where = f"--address {address!r}" if address else "a local Ray"
            got = " ".join(str(error).split())
            allowed = "host:port of a Ray cluster's head"
            raise ConfigError(where, got=got, allowed=allowed, hint="remove --address, or correct it") from None
        yield
    finally:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave processes behind
        ray.shutdown()
        signal.signal(signal.SIGINT, before)


def _reach(address: str) -> None:
    """Raise OSError if nothing listens at ``host:port``: Ray would retry for ever and ignore Ctrl-C."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()


def enter_folder(folder: str) -> None:
    """Make a worker find relative paths and a user's own modules in the command's working folder.

    Args:
        folder: The command's working folder. A machine of a cluster may lack this folder.
    """
    with contextlib.suppress(OSError):
        os.chdir(folder)
    if folder not in sys.path:
        sys.path.append(folder)
