"""Errors of a run that is resumed: its settings, its directory, its checkpoints, its sites' states."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from apps.artifacts import CHECKPOINT_FORMAT, CHECKPOINT_VERSION
from apps.files import read_sealed, write_sealed
from apps.state_store import STATE_FORMAT, STATE_VERSION
from tests.apps.errors.row import Row, Says, run
from tests.apps.errors.shared import CONFIG

Change = Callable[[Path], object]


def resumed(name: str, *configs: str, change: Change | None = None, says: Says) -> Row:
    """The finished run, resumed after a change in its directory."""

    def before(tmp: Path, finished: Path) -> None:
        shutil.copytree(finished, tmp / "run")
        if change is not None:
            change(tmp / "run")

    return run(name, CONFIG, "resume=true", *configs, says=says, clients=2, before=before)


def written(file: str, text: str) -> Change:
    return lambda run: (run / file).write_text(text)


def newest(run: Path) -> Path:
    return run / "checkpoints" / "round-000002.safetensors"


def sealed(**told: str) -> Change:
    """The newest checkpoint saying other things of itself."""

    def change(run: Path) -> None:
        arrays, metadata = read_sealed(newest(run), CHECKPOINT_FORMAT, CHECKPOINT_VERSION)
        write_sealed(newest(run), CHECKPOINT_FORMAT, CHECKPOINT_VERSION, arrays, {**metadata, **told})

    return change


def holding(alter: Callable[[dict[str, Any]], object]) -> Change:
    """The newest checkpoint with other arrays."""

    def change(run: Path) -> None:
        arrays, metadata = read_sealed(newest(run), CHECKPOINT_FORMAT, CHECKPOINT_VERSION)
        alter(arrays)
        write_sealed(newest(run), CHECKPOINT_FORMAT, CHECKPOINT_VERSION, arrays, metadata)

    return change


def cut(run: Path) -> None:
    newest(run).write_bytes(newest(run).read_bytes()[:100])


def flipped(run: Path) -> None:
    content = bytearray(newest(run).read_bytes())
    content[-1] ^= 1
    newest(run).write_bytes(bytes(content))


def other_version(run: Path) -> None:
    arrays, metadata = read_sealed(newest(run), CHECKPOINT_FORMAT, CHECKPOINT_VERSION)
    write_sealed(newest(run), CHECKPOINT_FORMAT, "1", arrays, metadata)


def lacking_a_round(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([lines[0], *lines[2:]]))


def with_a_line(text: str) -> Change:
    def change(run: Path) -> None:
        path = run / "metrics.jsonl"
        path.write_text(text + path.read_text())

    return change


def of_another_client(run: Path) -> None:
    """The clients' states say that they are client 9's."""
    for path in (run / "client-state").rglob("client-*/*.safetensors"):
        arrays, told = read_sealed(path, STATE_FORMAT, STATE_VERSION)
        write_sealed(path, STATE_FORMAT, STATE_VERSION, arrays, {**told, "owner": "another/client-9"})


def without_best(run: Path) -> None:
    sealed(best=json.dumps([1]))(run)


MORE = "num-server-rounds=3"
ROWS = [
    run(
        "nothing to resume",
        CONFIG,
        "resume=true",
        says=("resume", "got true", "there is no run in {tmp}/run", "set run-name (or --out)"),
    ),
    resumed(
        "unreadable config",
        change=written("config.toml", "a = = 1"),
        says=("resume", "{tmp}/run/config.toml", "expected TOML", "begin a new run"),
    ),
    resumed(
        "other settings",
        "local-steps=2",
        says=("resume: local-steps", "is 2", "was started with 1", "set it so, or begin a new run"),
    ),
    resumed(
        "damaged token",
        change=written("run-token", "abc"),
        says=("resume", "{tmp}/run/run-token", "32 hexadecimal digits", "begin a new run"),
    ),
    resumed(
        "no checkpoint",
        change=lambda run: shutil.rmtree(run / "checkpoints"),
        says=("resume", "{tmp}/run/checkpoints holds no checkpoint", "expected one at least", "checkpoint-every > 0"),
    ),
    resumed(
        "truncated checkpoint",
        change=cut,
        says=("resume", "{tmp}/run/checkpoints/round-000002.safetensors", "the one before", "remove it"),
    ),
    resumed(
        "checkpoint of another version",
        change=other_version,
        says=("resume", "of version '1'", "of version '2'", "remove it"),
    ),
    resumed(
        "changed checkpoint", change=flipped, says=("resume", "not what was written", "the one before", "remove it")
    ),
    resumed(
        "checkpoint of another run",
        change=sealed(run="0" * 32),
        says=("resume", "of another run: '0000", "expected '", "remove it"),
    ),
    resumed(
        "checkpoint of another round",
        change=sealed(round="7"),
        says=("resume", "of round '7'", "its name does not say", "remove it"),
    ),
    resumed(
        "checkpoint with more",
        change=holding(lambda arrays: arrays.update({"extra.x": np.zeros(1)})),
        says=("resume", "unknown array 'extra.x'", "allowed: model.*", "remove it"),
    ),
    resumed(
        "checkpoint without a model",
        change=holding(lambda arrays: arrays.pop("model.parameters")),
        says=("resume", "model of []", "expected ['parameters'", "remove it"),
    ),
    resumed(
        "checkpoint without metrics",
        change=without_best,
        says=("resume", "'best' is '[1]'", "expected numbers by name", "remove it"),
    ),
    resumed(
        "round that is missing",
        change=lacking_a_round,
        says=("resume: {tmp}/run/metrics.jsonl", "has 2 lines", "expected one of each round", "begin a new run"),
    ),
    resumed(
        "line that is none",
        change=with_a_line("[1]\n"),
        says=("resume: {tmp}/run/metrics.jsonl", "got '[1]'", "a JSON object with its round", "remove the line"),
    ),
    resumed(
        "fewer rounds",
        "num-server-rounds=1",
        says=("num-server-rounds", "got 1", "already made 2 rounds", "set num-server-rounds to 2 or more"),
    ),
    resumed(
        "model of another size",
        MORE,
        change=holding(lambda arrays: arrays.update({"model.parameters": arrays["model.parameters"][:-1]})),
        says=("resume", "the newest checkpoint does not fit this run", "expected", "begin a new run"),
    ),
    resumed(
        "state of another client",
        MORE,
        change=of_another_client,
        says=("client state", "owner 'another/client-9'", "expected '", "remove it"),
    ),
]
