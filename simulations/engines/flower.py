"""The engine ``flower``: a run in Flower's own simulation, by ``flwr run``.

``flwr run`` exits with 0 even if the run fails. This module therefore submits the run, waits for the end of its log,
and then reads its final status from ``flwr list``.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
import torch

from apps.config import ConfigError
from payloads.flower_internals import NO_INSTALLATION
from problems.errors import require
from simulations.arguments import nest
from simulations.engines.flower_internals import (
    COMPLETED,
    DETAILS,
    ERROR_MESSAGE,
    RUN_ID,
    RUNS,
    STATUS,
    SUCCESS,
    UNFINISHED,
)

PROJECT = Path(__file__).resolve().parents[2]
POLL_SECONDS = 1.0


class FlowerError(RuntimeError):
    """The error about a run that ``flwr`` refused, or that did not complete. The message contains Flower's text."""


def run_with_flower(
    num_clients: int,
    run_config: Mapping[str, bool | int | float | str],
    *,
    together: bool = False,
    client_gpus: float = 0.0,
    quiet: bool = False,
) -> None:
    """Submit a run to Flower's local simulation, and return when it has completed.

    Args:
        num_clients: The number of clients.
        run_config: The flat run config.
        together: Whether all clients must run at the same time. Ray is then configured with a CPU for each client.
        client_gpus: The share of a GPU for each client's process. 0: Ray hides the GPUs from the process.
        quiet: Whether to hide Flower's log.

    Raises:
        ConfigError: The project is not a checkout: ``flwr run`` needs its pyproject.toml.
        FlowerError: The run was refused, failed or was stopped.
        MissingExtraError: Ray is not installed.
    """
    require_checkout("--engine flower")
    require("--engine flower", "simulation", "ray")
    federation = federation_config(num_clients, together=together, client_gpus=client_gpus)
    Flwr(_environment(), quiet=quiet).run(PROJECT, run_config, "--federation-config", federation)


def require_checkout(option: str) -> None:
    """Check that the project is a Git checkout.

    Raises:
        ConfigError: It is not: ``flwr run`` needs its pyproject.toml.
    """
    if not (PROJECT / "pyproject.toml").exists():
        got = f"{option}, but {PROJECT} contains no pyproject.toml"
        hint = f"remove {option}, or install the project from a Git checkout"
        raise ConfigError(option, got=got, allowed=f"{option} only in a Git checkout of the project", hint=hint)


@dataclass(frozen=True)
class Flwr:
    """The command ``flwr``.

    Attributes:
        environment: The environment variables.
        connection: The name of the connection to a SuperLink. "": the default.
        quiet: Whether to hide Flower's log.
    """

    environment: Mapping[str, str]
    connection: str = ""
    quiet: bool = False

    def run(self, app: Path, run_config: Mapping[str, bool | int | float | str], *options: str) -> None:
        """Submit a run, and return when it has completed. An interrupt stops the run.

        Args:
            app: The folder of the Flower app.
            run_config: The flat run config.
            options: Further options of ``flwr run``.

        Raises:
            FlowerError: The run was refused, failed or was stopped.
        """
        to = [self.connection] if self.connection else []
        with tempfile.TemporaryDirectory() as folder:
            overrides = Path(folder) / "run-config.toml"
            overrides.write_text(tomli_w.dumps(nest(run_config)), encoding="utf-8")
            submitted = self.ask("run", str(app), *to, "--run-config", str(overrides), *options)
        run_id = str(submitted[RUN_ID])
        # The log ends when the run ends. Polling the status instead would start a Python process each time.
        output = subprocess.DEVNULL if self.quiet else None
        words = [*_flwr("log", run_id, *to), "--stream"]
        follower = subprocess.Popen(words, cwd=PROJECT, env=self.environment, stdout=output, stderr=output)
        try:
            follower.wait()
            status, details = self._wait(run_id, to)
        except KeyboardInterrupt:
            subprocess.run(_flwr("stop", run_id, *to), env=self.environment, check=False, capture_output=True)
            raise
        finally:
            if follower.poll() is None:
                follower.kill()
                follower.wait()
        if status != COMPLETED:
            raise FlowerError(f"Flower's run {run_id} ended with status {status}{': ' + details if details else ''}")

    def _wait(self, run_id: str, to: list[str]) -> tuple[str, str]:
        while True:
            run = self.ask("list", *to, "--run-id", run_id)[RUNS][0]
            if run[STATUS] not in UNFINISHED:
                return str(run[STATUS]), str(run.get(DETAILS) or "")
            time.sleep(POLL_SECONDS)

    def ask(self, *arguments: str) -> Any:
        """Return the answer of a command of ``flwr``.

        Args:
            arguments: The words after ``flwr``.

        Raises:
            FlowerError: The command has failed. The text has Flower's reason.
        """
        done = subprocess.run(
            _flwr(*arguments, "--format", "json"),
            cwd=PROJECT,  # a new SuperLink stays in this folder, which Ray puts first in the module search path
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            answer = json.loads(done.stdout)
        except json.JSONDecodeError:
            answer = None
        if done.returncode != 0 or not isinstance(answer, dict) or answer.get(SUCCESS) is False:
            message = answer.get(ERROR_MESSAGE) if isinstance(answer, dict) else None
            reason = message or done.stderr.strip() or done.stdout.strip()
            raise FlowerError(f"flwr {arguments[0]} failed: {' '.join(reason.split())}")
        return answer


def federation_config(num_clients: int, *, together: bool = False, client_gpus: float = 0.0) -> str:
    """Return the value of ``flwr run --federation-config``: a simulation in which each running client has one CPU.

    Args:
        num_clients: The number of clients.
        together: See `run_with_flower`.
        client_gpus: See `run_with_flower`.

    Returns:
        ``key=value`` pairs, separated by spaces.
    """
    federation = f"num-supernodes={num_clients} client-resources-num-cpus=1"
    if client_gpus:
        federation += f" client-resources-num-gpus={client_gpus:g}"
    # With init-args Ray refuses to join a cluster that already runs on the machine, so they are set only if needed.
    if together:
        federation += f" init-args-num-cpus={max(num_clients, os.cpu_count() or 1)}"
    return federation


def gpu_share(device: str) -> float:
    """Return the default share of a GPU for each client, if as many clients as CPUs run at the same time.

    Args:
        device: The run-config key ``device``.

    Returns:
        At most 1, rounded down to four decimals. 0 if ``device`` is "cpu", or PyTorch finds no GPU.
    """
    if device == "cpu" or not torch.cuda.is_available():
        return 0.0
    # rounded down, so the shares of all clients fit on the GPUs
    return math.floor(1e4 * min(1.0, torch.cuda.device_count() / (os.cpu_count() or 1))) / 1e4


def _flwr(*arguments: str) -> list[str]:
    beside = Path(sys.executable).with_name("flwr")
    return [str(beside) if beside.exists() else "flwr", *arguments]


def _environment() -> dict[str, str]:
    # Without NO_INSTALLATION Flower installs every dependency in a new environment for each run. Without this PATH
    # Flower does not find flower-superlink if no environment is activated.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, NO_INSTALLATION: "1", "PATH": path}
