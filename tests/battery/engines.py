"""The engines of the tests: this process, and Flower's own simulation."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest

from apps.config import Scalar, parse_run_config
from simulations.engines.flower import run_with_flower
from tests.battery.federation import Run, federate, flat_config
from tests.battery.ports import free_ports

SECONDS_TO_START, SECONDS_TO_END = 180.0, 15.0


class Engine(Protocol):
    """An engine that runs a federation to its end and reads its directory; ``name`` is the engine's name in the CLI."""

    name: str

    def run(self, path: Path, config: Mapping[str, Scalar], clients: int) -> Run: ...


class InProcess:
    """The engine `simulations.engines.in_process`."""

    name = "inprocess"

    def run(self, path: Path, config: Mapping[str, Scalar], clients: int) -> Run:
        return federate(path, config, clients)[0]


class Flower:
    """``flwr run`` with the test's own SuperLink."""

    name = "flower"

    def run(self, path: Path, config: Mapping[str, Scalar], clients: int) -> Run:
        flat = flat_config(path, config)
        together = parse_run_config(flat).algorithm.strategy.clients_meet
        run_with_flower(clients, flat, together=together, quiet=True)
        return Run(path)


@contextlib.contextmanager
def flower_home(folder: Path) -> Iterator[None]:
    """Set a separate FLWR_HOME and separate ports, start a local SuperLink, and end it afterwards.

    If Flower starts the SuperLink itself, it gives up after 15 seconds; on a busy machine the imports take as long.
    """
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FLWR_HOME", str(folder))
        environment.setenv("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")
        environment.setenv("FLWR_TELEMETRY_ENABLED", "0")
        environment.setenv("FLWR_DISABLE_UPDATE_CHECK", "1")
        first, second = free_ports(2)
        environment.setenv("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", str(first))
        environment.setenv("FLWR_LOCAL_CONTROL_API_PORT", str(second))
        superlink = start_superlink(folder, first, second)
        try:
            wait_for(superlink, first, folder)
            yield
        finally:
            end_processes(folder)
            superlink.wait()


def start_superlink(folder: Path, port: int, control_port: int) -> subprocess.Popen[bytes]:
    """Start the SuperLink that ``flwr run`` would start."""
    home = folder / "local-superlink"
    home.mkdir(parents=True)
    options = ["--insecure", "--simulation", "--isolation", "subprocess", "--host", "127.0.0.1", "--port", str(port)]
    options += ["--control-api-address", f"127.0.0.1:{control_port}", "--database", str(home / "state.db")]
    with (home / "superlink.log").open("wb") as log:
        command = [Path(sys.executable).with_name("flower-superlink"), *options]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def wait_for(superlink: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    """Wait until the SuperLink answers."""
    deadline = time.monotonic() + SECONDS_TO_START
    while superlink.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1.0):
            return
        time.sleep(0.2)
    pytest.fail(f"no SuperLink: {(folder / 'local-superlink' / 'superlink.log').read_text('utf-8')}")


def processes_of(folder: Path) -> list[int]:
    """Return the processes with a folder as FLWR_HOME: SuperLink, SuperExec, simulation and Ray."""
    mark = f"FLWR_HOME={folder}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes() + b"\0":
                    found.append(int(entry.name))
    return found


def end_processes(folder: Path) -> None:
    """Terminate these processes by their ids; kill those still running after a while."""
    kind, deadline = signal.SIGTERM, time.monotonic() + SECONDS_TO_END
    while running := processes_of(folder):
        if time.monotonic() > deadline:
            kind = signal.SIGKILL
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, kind)
        time.sleep(0.5)
