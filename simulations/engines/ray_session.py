"""Start and end of Ray: a local Ray or a joined cluster, without Ray's output, usage statistics and dashboard."""

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
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",  # workers without a share of a GPU see the machine's GPUs
    RAY_prestart_worker_first_driver="0",  # idle workers would slow the first rounds down
    RAY_worker_niceness="0",  # workers have the same priority as other processes
)

import ray

from apps.config import ConfigError

_CONNECT_SECONDS = 10.0


@contextlib.contextmanager
def open_ray(cpus: int | None, address: str, *, workers_log: bool = False, store: int | None = None) -> Iterator[None]:
    """Start a local Ray or join a cluster. At the end of the block, stop the local Ray or leave the cluster.

    Args:
        cpus: The number of workers that a local Ray may run at the same time. None: the number of CPUs.
        address: The address of a cluster's head node, or "auto" for a Ray on this machine. Empty: a new local Ray.
        workers_log: Whether to show the workers' output in this process.
        store: The bytes of a local Ray's object store. None: Ray's default.

    Raises:
        ConfigError: No Ray answers at the address, or this process already uses a Ray.
    """
    if ray.is_initialized():
        got = "a Ray that this process has started or joined before"
        allowed = "a process without a running Ray"
        raise ConfigError("Ray", got=got, allowed=allowed, hint="call ray.shutdown() before the run")
    quiet: dict[str, Any] = {"log_to_driver": workers_log, "logging_level": logging.CRITICAL}
    logging.getLogger("ray").setLevel(logging.CRITICAL)  # the caller reports errors
    # Ray puts the current folder first in its workers' module search path. A user's folder may contain an ``apps/``.
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
            got = " ".join(str(error).split())
            if not address:
                allowed = "a machine on which Ray can start"
                raise ConfigError(
                    "Ray", got=got, allowed=allowed, hint="end other Ray processes, or do not use Ray"
                ) from None
            got = f"{address!r}, which cannot be reached ({got})"
            allowed = "host:port of a Ray cluster's head node"
            raise ConfigError("--address", got=got, allowed=allowed, hint="correct or remove --address") from None
        yield
    finally:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave processes behind
        ray.shutdown()
        signal.signal(signal.SIGINT, before)


def _reach(address: str) -> None:
    """Raise OSError if no process listens at ``host:port``, since Ray would retry for ever and ignore Ctrl-C."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()


def enter_folder(folder: str) -> None:
    """Let a Ray worker find relative paths and the user's own modules in the command's working folder.

    Args:
        folder: The command's working folder. It may be absent on other machines of a cluster.
    """
    with contextlib.suppress(OSError):
        os.chdir(folder)
    if folder not in sys.path:
        sys.path.append(folder)
