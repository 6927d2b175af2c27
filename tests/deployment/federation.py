"""A federation on loopback as an operator sets it up: `deploy`'s scripts, TLS, a registered key for each site."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from apps.config import Scalar
from simulations.flower import UNFINISHED, nested
from tests.battery.engines import end_processes, free_ports
from tests.battery.federation import Run, flat_config

PROJECT = Path(__file__).resolve().parent.parent.parent
SECONDS_TO_START = 240.0
SECONDS_TO_RUN = 900.0
CONNECTION = "loopback"


@dataclass
class Deployment:
    """A SuperLink and its SuperNodes.

    Attributes:
        folder: certificates, keys, logs, the SuperLink's database; FLWR_HOME, which marks the processes as ours.
    """

    folder: Path
    sites: int
    port: int = 0
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
        return {
            **kept,
            "PATH": path,
            "FLWR_HOME": str(self.folder),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }

    def command(self, name: str) -> str:
        return str(Path(sys.executable).with_name(name))

    def prepare(self) -> None:
        """Certificates, a key a site, and the connection in Flower's configuration."""
        self.script("certificates.sh", "tls", "localhost", "127.0.0.1")
        for site in range(self.sites):
            self.script("node-key.sh", "keys", f"site-{site}")
        (self.port,) = free_ports(1)
        connection = {"address": f"127.0.0.1:{self.port}", "root-certificates": str(self.folder / "tls" / "ca.crt")}
        (self.folder / "config.toml").write_text(tomli_w.dumps({"superlink": {CONNECTION: connection}}))

    def script(self, name: str, *arguments: str) -> None:
        subprocess.run([PROJECT / "deploy" / name, *arguments], cwd=self.folder, check=True, capture_output=True)

    def start_superlink(self) -> None:
        self.start(
            "superlink",
            "flower-superlink",
            "--ssl-ca-certfile=tls/ca.crt",
            "--ssl-certfile=tls/server.pem",
            "--ssl-keyfile=tls/server.key",
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
            "--host=127.0.0.1",
            f"--port={self.port}",
            "--database=state.db",
        )

    def start_node(self, site: int, **config: Scalar) -> None:
        settings = {"partition-id": site, "num-partitions": self.sites, **config}
        self.start(
            f"site-{site}",
            "flower-supernode",
            "--root-certificates=tls/ca.crt",
            f"--superlink=127.0.0.1:{self.port}",
            f"--auth-supernode-private-key=keys/site-{site}",
            "--host=127.0.0.1",
            f"--port={free_ports(1)[0]}",
            f"--node-config={' '.join(f'{key}={json.dumps(value)}' for key, value in settings.items())}",
        )

    def start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as output:
            self.processes[name] = subprocess.Popen(
                [self.command(command[0]), *command[1:]],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def register(self) -> None:
        """Tell the SuperLink the sites' public keys, as soon as it answers."""
        for site in range(self.sites):
            key = str(self.folder / "keys" / f"site-{site}.pub")
            arguments = ("supernode", "register", key, CONNECTION, "--name", f"site-{site}")
            until(lambda arguments=arguments: self.flwr(*arguments) is not None, "the SuperLink takes a key")

    def online(self) -> int:
        """How many SuperNodes are connected."""
        answer = self.flwr("supernode", "list", CONNECTION)
        return 0 if answer is None else sum(node["status"] == "online" for node in answer["nodes"])

    def flwr(self, *arguments: str) -> dict[str, Any] | None:
        """What a command of Flower's answers as JSON, or None where it failed."""
        done = subprocess.run(
            [self.command("flwr"), *arguments, "--format", "json"],
            cwd=PROJECT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except json.JSONDecodeError:
            return None
        return answer if done.returncode == 0 and answer.get("success") is not False else None

    def run(self, path: Path, config: Mapping[str, Scalar]) -> Run:
        """Submit a run, wait for its end, and read its directory back."""
        run_id = self.submit(path, config)
        until(lambda: self.status(run_id) not in UNFINISHED, "the run ends", SECONDS_TO_RUN)
        assert self.status(run_id) == "finished:completed", self.logs()
        return Run(path)

    def submit(self, path: Path, config: Mapping[str, Scalar]) -> str:
        overrides = self.folder / "run-config.toml"
        overrides.write_text(tomli_w.dumps(nested(flat_config(path, config))), encoding="utf-8")
        answer = self.flwr("run", str(PROJECT), CONNECTION, "--run-config", str(overrides))
        assert answer is not None, self.logs()
        return str(answer["run-id"])

    def status(self, run_id: str) -> str:
        answer = self.flwr("list", CONNECTION, "--run-id", run_id)
        return "pending" if answer is None else str(answer["runs"][0]["status"])

    def logs(self) -> str:
        """The last lines of every process's output."""
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"== {file.name}\n" + "\n".join(file.read_text().splitlines()[-25:]) for file in files)


def until(holds: Any, what: str, seconds: float = SECONDS_TO_START) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(1.0)


@contextlib.contextmanager
def deployed(folder: Path, sites: int = 3) -> Iterator[Deployment]:
    """A running federation, all of whose processes end with it."""
    deployment = Deployment(folder, sites)
    try:
        deployment.prepare()
        deployment.start_superlink()
        deployment.register()
        for site in range(sites):
            deployment.start_node(site)
        until(lambda: deployment.online() == sites, "all SuperNodes are online")
        yield deployment
    finally:
        end_processes(folder)
        for process in deployment.processes.values():
            process.wait()
