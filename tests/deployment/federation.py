"""A federation on loopback, set up like an operator's: `deploy`'s scripts, TLS, a registered key for each site."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import tomli_w

from apps.config import Scalar
from simulations.arguments import nest
from simulations.engines.flower import UNFINISHED
from simulations.kits.start import environment_of, put_scripts
from tests.battery.engines import end_processes, processes_of
from tests.battery.federation import Run, flat_config, patients
from tests.battery.ports import free_ports

PROJECT = Path(__file__).resolve().parent.parent.parent
SECONDS_TO_START = 240.0
SECONDS_TO_RUN = 900.0
# pause between two starts of a SuperNode that the SuperLink rejects
SECONDS_TO_RESTART = 5.0
# seconds between two polls for work: at 0.05, polling takes a third of two cores
POLL = "0.3"
CONNECTION = "loopback"
LOOPBACK = "127.0.0.1"
# the common keys of runs on the sites' own tables
OWN: dict[str, Scalar] = {
    "dataset": "csv",
    "partition": "own",
    "label-column": "ill",
    "positive-label": "yes",
    "feature-columns": "weight,sex[f|m],age",
}
# distinguishes the processes of the SuperLink and of each site
MARK = "DEPLOYED_AS"
# a line in the SuperNode's log once the SuperLink has accepted it
ACCEPTED = "SuperNode ID:"
SERVER_APP, CLIENT_APP = "flwr-serverapp", "flwr-clientapp"


@dataclass
class Deployment:
    """A SuperLink and its SuperNodes.

    Attributes:
        folder: Certificates, keys, logs, and the SuperLink's database. Also FLWR_HOME, which marks the processes as
            ours.
        own_tables: Whether each site has its own table, which runs with ``partition=own`` read. A party of a vertical
            run that has a table takes no columns of a shared data set.
    """

    folder: Path
    sites: int
    own_tables: bool = False
    port: int = 0
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    # the SuperLink's host, as the SuperNodes reach it
    host: str = LOOPBACK

    def place(self, name: str) -> list[str]:
        """Return the words before a command that run it on the host of the SuperLink or a site."""
        return []

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in environment_of(self.folder).items() if not name.startswith("FLWR_")}
        return {
            **kept,
            "FLWR_HOME": str(self.folder),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": POLL,
        }

    def command(self, name: str) -> str:
        return str(Path(sys.executable).with_name(name))

    def prepare(self) -> None:
        """Create certificates, keys, a kit's scripts, and the connection in Flower's configuration."""
        put_scripts(self.folder)
        self.script("certificates.sh", "tls", "localhost", self.host)
        for site in range(self.sites):
            self.script("node-key.sh", "keys", f"site-{site}")
        (self.port,) = free_ports(1)
        connection = {"address": f"{LOOPBACK}:{self.port}", "root-certificates": str(self.folder / "tls" / "ca.crt")}
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
            f"--host={LOOPBACK if self.host == LOOPBACK else '0.0.0.0'}",
            f"--port={self.port}",
            "--database=state.db",
        )

    def start_node(
        self, site: int, *, key: str = "", environment: Mapping[str, str] | None = None, **config: Scalar
    ) -> None:
        """Start a site's SuperNode, which keeps its state on its own disk.

        Args:
            key: Name of another key to use; also names the process and its log.
            environment: Additional variables for the SuperNode and its ClientApps.
            config: Additional settings of the site, ``_`` for ``-``; "" removes a setting.
        """
        name = key or f"site-{site}"
        (self.folder / f"state-{site}").mkdir(exist_ok=True)
        settings = {
            "state-dir": str(self.folder / f"state-{site}"),
            **({"data-path": str(self.own_file(site))} if self.own_tables else {}),
            **{key.replace("_", "-"): value for key, value in config.items()},
        }
        settings = {key: value for key, value in settings.items() if value != ""}
        node: dict[str, Scalar] = {"partition-id": site, "num-partitions": self.sites}
        if settings:  # a file without a key is an error
            self.site_config(site).write_text(tomli_w.dumps(settings))
            node["site-config"] = str(self.site_config(site))
        self.start(
            name,
            "flower-supernode",
            "--root-certificates=tls/ca.crt",
            f"--superlink={self.host}:{self.port}",
            f"--auth-supernode-private-key=keys/{name}",
            f"--host={LOOPBACK}",
            f"--port={free_ports(1)[0]}",
            f"--node-config={' '.join(f'{key}={json.dumps(value)}' for key, value in node.items())}",
            environment=environment,
        )

    def site_config(self, site: int) -> Path:
        """Return the path of a site's settings file."""
        return self.folder / f"site-{site}.toml"

    def own_file(self, site: int) -> Path:
        """Return the path of a site's own table, written at the first call; runs with ``partition=own`` read it."""
        path = self.folder / f"rows-{site}.csv"
        if not path.exists():
            patients(80 + 10 * site, site).to_csv(path, index=False)
        return path

    def start(self, name: str, *command: str, environment: Mapping[str, str] | None = None) -> None:
        with (self.folder / f"{name}.log").open("ab") as output:
            self.processes[name] = subprocess.Popen(
                [*self.place(name), self.command(command[0]), *command[1:]],
                cwd=self.folder,
                env={**self.environment, MARK: name, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def processes_of(self, name: str, command: str = "") -> list[int]:
        """Return the processes of the SuperLink or of a site, including children, or only the processes of one
        command."""
        mark, found = f"{MARK}={name}\0".encode(), []
        for process in processes_of(self.folder):
            with contextlib.suppress(OSError):
                own = mark in Path(f"/proc/{process}/environ").read_bytes() + b"\0"
                if own and command.encode() in Path(f"/proc/{process}/cmdline").read_bytes():
                    found.append(process)
        return found

    def kill(self, name: str, command: str = "") -> None:
        """Send SIGKILL to all of these processes, as a power cut or the kernel does."""
        while running := self.processes_of(name, command):
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.1)
        if not command:
            self.processes[name].wait(SECONDS_TO_START)  # the kernel may still be ending it
        self.processes[name].poll()

    def stop(self, name: str) -> None:
        """End the SuperLink or a site like its operator, and wait until its children have ended too."""
        self.processes[name].terminate()
        self.processes[name].wait(SECONDS_TO_START)
        until(lambda: not self.processes_of(name), f"{name} ends")

    def restart_node(self, site: int, **options: Any) -> None:
        """Start a site's SuperNode until the SuperLink accepts it, which takes until a killed one's heartbeat
        lapses."""
        name = f"site-{site}"
        before, deadline = self.log(name).count(ACCEPTED), time.monotonic() + SECONDS_TO_START
        while time.monotonic() < deadline:
            self.start_node(site, **options)
            while self.processes[name].poll() is None:
                if self.log(name).count(ACCEPTED) > before:
                    return
                time.sleep(0.2)
            self.kill(name)
            time.sleep(SECONDS_TO_RESTART)
        raise TimeoutError(f"{name} is not taken back: {self.log(name)[-1000:]}")

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def register(self) -> None:
        """Register the sites' public keys with the SuperLink, as soon as it answers."""
        for site in range(self.sites):
            key = str(self.folder / "keys" / f"site-{site}.pub")
            arguments = ("supernode", "register", key, CONNECTION, "--name", f"site-{site}")
            until(lambda arguments=arguments: self.flwr(*arguments) is not None, "the SuperLink takes a key")

    def online(self) -> int:
        """Return the number of connected SuperNodes."""
        answer = self.flwr("supernode", "list", CONNECTION) or {"nodes": []}
        return sum(node["status"] == "online" for node in answer["nodes"])

    def flwr(self, *arguments: str) -> dict[str, Any] | None:
        """Return the JSON answer of a Flower command, or None if it failed."""
        done = subprocess.run(
            [*self.place("superlink"), self.command("flwr"), *arguments, "--format", "json"],
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
        # cheaper to look at than the status; a resumed run has removed the previous part's outcome, or will
        outcomes = [path / "result.json", path / "failure.json"]
        until(lambda: any(outcome.exists() for outcome in outcomes), "there is an outcome", SECONDS_TO_RUN)
        assert self.ended(run_id) == "finished:completed", self.logs()
        return Run(path)

    def ended(self, run_id: str) -> str:
        """Wait for the end of a run, and return its status."""
        until(lambda: self.status(run_id) not in UNFINISHED, "the run ends", SECONDS_TO_RUN)
        return self.status(run_id)

    def submit(self, path: Path, config: Mapping[str, Scalar]) -> str:
        overrides = self.folder / "run-config.toml"
        overrides.write_text(tomli_w.dumps(nest(flat_config(path, config))), encoding="utf-8")
        answer = self.flwr("run", str(PROJECT), CONNECTION, "--run-config", str(overrides))
        assert answer is not None, self.logs()
        return str(answer["run-id"])

    def status(self, run_id: str) -> str:
        answer = self.flwr("list", CONNECTION, "--run-id", run_id)
        return "pending" if answer is None else str(answer["runs"][0]["status"])

    def logs(self) -> str:
        """Return the last lines of every process's output."""
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"== {file.name}\n" + "\n".join(file.read_text().splitlines()[-25:]) for file in files)


def until(holds: Any, what: str, seconds: float = SECONDS_TO_START) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(1.0)


@contextlib.contextmanager
def deployed(
    folder: Path, sites: int = 3, *, own_tables: bool = False, environments: Sequence[Mapping[str, str]] = ()
) -> Iterator[Deployment]:
    """Yield a running federation and end all its processes; ``environments``: additional variables for each site."""
    deployment = Deployment(folder, sites, own_tables)
    try:
        deployment.prepare()
        deployment.start_superlink()
        deployment.register()
        for site, environment in zip_longest(range(sites), environments):
            deployment.start_node(site, environment=environment)
        until(lambda: deployment.online() == sites, "all SuperNodes are online")
        yield deployment
    finally:
        end_processes(folder)
        for process in deployment.processes.values():
            process.wait()
