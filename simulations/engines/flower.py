"""Runs of the app by ``flwr run``, with their real outcome.

``flwr run`` exits with 0 even if the run failed. This module therefore submits the run, follows its log and then
asks for its final status.
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
    """A run that ``flwr`` refused or that did not complete. The message contains Flower's text."""


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
        together: Whether all clients must run at once. Ray then starts as if it had a CPU for each client.
        client_gpus: The share of a GPU for each client's process. With 0 Ray hides the GPUs from it.

    Raises:
        ConfigError: There is no checkout to run from.
        FlowerError: The run was refused, failed or was stopped.
        MissingExtraError: Ray is not installed.
    """
    if not (PROJECT / "pyproject.toml").exists():
        got = f"flower, but {PROJECT} contains no pyproject.toml"
        allowed = "flower only in a checkout of the project"
        raise ConfigError("--engine", got=got, allowed=allowed, hint="remove --engine, or clone the project")
    require("--engine flower", "simulation", "ray")
    with tempfile.TemporaryDirectory() as folder:
        overrides = Path(folder) / "run-config.toml"
        overrides.write_text(tomli_w.dumps(nest(run_config)), encoding="utf-8")
        federation = federation_config(num_clients, together=together, client_gpus=client_gpus)
        submitted = _flwr_json("run", str(PROJECT), "--run-config", str(overrides), "--federation-config", federation)
    run_id = str(submitted[RUN_ID])
    # The log ends with the run. Each poll of the status would start a Python process and slow the run down.
    output = subprocess.DEVNULL if quiet else None
    follower = subprocess.Popen(
        _flwr("log", run_id, "--stream"), cwd=PROJECT, env=_environment(), stdout=output, stderr=output
    )
    try:
        follower.wait()
        status, details = _wait(run_id)
    except KeyboardInterrupt:
        subprocess.run(_flwr("stop", run_id), env=_environment(), check=False, capture_output=True)
        raise
    finally:
        if follower.poll() is None:
            follower.kill()
            follower.wait()
    if status != COMPLETED:
        raise FlowerError(f"run {run_id} ended as {status}{': ' + details if details else ''}")


def federation_config(num_clients: int, *, together: bool = False, client_gpus: float = 0.0) -> str:
    """Return the ``--federation-config`` of a simulation: one client at once for each CPU, and shares of GPUs.

    Returns:
        ``key=value`` pairs in one text. For ``together`` and ``client_gpus`` see `run_with_flower`.
    """
    federation = f"num-supernodes={num_clients} client-resources-num-cpus=1"
    if client_gpus:
        federation += f" client-resources-num-gpus={client_gpus:g}"
    # Init-args are set only if needed: with them Ray refuses to join a cluster that is running on the machine.
    if together:
        federation += f" init-args-num-cpus={max(num_clients, os.cpu_count() or 1)}"
    return federation


def gpu_share(device: str) -> float:
    """Return the share of a GPU for each client if one client for each CPU share all GPUs.

    Returns:
        At most 1, rounded down to four decimals; 0 if ``device`` is "cpu", or PyTorch sees no GPU.
    """
    if device == "cpu" or not torch.cuda.is_available():
        return 0.0
    # rounded down, so all clients fit
    return math.floor(1e4 * min(1.0, torch.cuda.device_count() / (os.cpu_count() or 1))) / 1e4


def _wait(run_id: str) -> tuple[str, str]:
    while True:
        run = _flwr_json("list", "--run-id", run_id)[RUNS][0]
        if run[STATUS] not in UNFINISHED:
            return str(run[STATUS]), str(run.get(DETAILS) or "")
        time.sleep(POLL_SECONDS)


def _flwr(*arguments: str) -> list[str]:
    beside = Path(sys.executable).with_name("flwr")
    return [str(beside) if beside.exists() else "flwr", *arguments]


def _environment() -> dict[str, str]:
    # Without the variable Flower re-installs every dependency in a new environment for each run. Without the path it
    # does not find flower-superlink if no environment is activated.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, NO_INSTALLATION: "1", "PATH": path}


def _flwr_json(*arguments: str) -> Any:
    done = subprocess.run(
        _flwr(*arguments, "--format", "json"),
        cwd=PROJECT,  # a SuperLink that it starts keeps this folder, and Ray puts it first in the module search path
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        answer = json.loads(done.stdout)
    except json.JSONDecodeError:
        answer = None
    if done.returncode != 0 or not isinstance(answer, dict) or answer.get(SUCCESS) is False:
        said = answer.get(ERROR_MESSAGE) if isinstance(answer, dict) else None
        reason = said or done.stderr.strip() or done.stdout.strip()
        raise FlowerError(f"flwr {arguments[0]} failed: {' '.join(reason.split())}")
    return answer
