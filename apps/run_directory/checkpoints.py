"""Checkpoints, from which a resumed run continues: one sealed file each."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from apps.sites.files import read_sealed, write_sealed
from payloads.record import FloatArray, PayloadError
from payloads.wire import MODEL_ARRAYS

CHECKPOINT_FORMAT, CHECKPOINT_VERSION = "florilegium-checkpoint", "2"


@dataclass(frozen=True)
class Checkpoint:
    """A run after a round: model, strategy's state, rounds of the clients' memories (`SiteStates`), best metrics."""

    server_round: int
    model: list[FloatArray]
    state: dict[str, NDArray[Any]]
    sites: dict[str, NDArray[Any]]
    best: dict[str, float]


def write_checkpoint(path: Path, run: str, checkpoint: Checkpoint) -> None:
    """Write the checkpoint of a run.

    Args:
        path: its name gives the round, ``round-000010.safetensors``, as `read_checkpoint` demands.
        run: the run's token.
    """
    model = dict(zip(MODEL_ARRAYS, checkpoint.model, strict=False))
    parts = {"model": model, "strategy": checkpoint.state, "sites": checkpoint.sites}
    arrays = {f"{part}.{name}": value for part, named in parts.items() for name, value in named.items()}
    metadata = {"run": run, "round": str(checkpoint.server_round), "best": json.dumps(checkpoint.best)}
    write_sealed(path, CHECKPOINT_FORMAT, CHECKPOINT_VERSION, arrays, metadata)


def read_checkpoint(path: Path, run: str) -> Checkpoint:
    """The checkpoint in a file.

    Raises:
        PayloadError: it is truncated, damaged, of another version or run, or no checkpoint at all.
    """
    arrays, metadata = read_sealed(path, CHECKPOINT_FORMAT, CHECKPOINT_VERSION)
    if metadata.get("run") != run:
        raise PayloadError(f"{path}: of another run: {metadata.get('run')!r}, expected {run!r}")
    if path.stem != f"round-{metadata.get('round', ''):0>6}":
        raise PayloadError(f"{path}: of round {metadata.get('round')!r}, which its name does not say")
    parts: dict[str, dict[str, NDArray[Any]]] = {"model": {}, "strategy": {}, "sites": {}}
    for name, value in arrays.items():
        part, _, field = name.partition(".")
        if part not in parts:
            raise PayloadError(f"{path}: unknown array {name!r}, allowed: {', '.join(f'{p}.*' for p in parts)}")
        parts[part][field] = value
    if tuple(sorted(parts["model"], reverse=True)) not in (MODEL_ARRAYS[:1], MODEL_ARRAYS):
        raise PayloadError(f"{path}: model of {sorted(parts['model'])}, expected {list(MODEL_ARRAYS)}")
    try:
        best = {str(name): float(value) for name, value in json.loads(metadata.get("best", "")).items()}
    except (ValueError, TypeError, AttributeError):
        raise PayloadError(f"{path}: 'best' is {metadata.get('best')!r}, expected numbers by name") from None
    model = [parts["model"][name] for name in MODEL_ARRAYS if name in parts["model"]]
    return Checkpoint(int(metadata["round"]), model, parts["strategy"], parts["sites"], best)
