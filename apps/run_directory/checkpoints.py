"""Checkpoints, from which a resumed run continues. Each is a sealed file: `apps.sites.files` detects any change."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from apps.evaluation.metric_names import add_suffix
from apps.evaluation.selection import NO_CHOICE, Choice, Selected
from apps.sites.files import read_sealed, write_sealed
from payloads.record import FloatArray, PayloadError
from payloads.wire import MODEL_ARRAYS, check_model
from strategies.base import PayloadStrategy
from strategies.rounds.replies import SiteStates

CHECKPOINT_FORMAT, CHECKPOINT_VERSION = "florilegium-checkpoint", "2"
# the part with the selected model's arrays; the part of a view has the view's suffix
_SELECTED = "selected"


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a round.

    Attributes:
        server_round: The round.
        model: The model.
        state: The strategy's state.
        sites: The rounds in which the clients' memories were stored: the arrays of a `SiteStates`.
        best: The best value of each metric.
        choice: The run's choices on validation rows.
        data: Fingerprints of the run's data. None in a checkpoint of an older release, or for vertical runs.
    """

    server_round: int
    model: list[FloatArray]
    state: dict[str, NDArray[Any]]
    sites: dict[str, NDArray[Any]]
    best: dict[str, float]
    choice: Choice = NO_CHOICE
    data: dict[str, Any] | None = None


def snapshot(
    strategy: PayloadStrategy,
    server_round: int,
    model: list[FloatArray],
    *,
    best: dict[str, float],
    choice: Choice,
    data: dict[str, Any] | None,
) -> Checkpoint:
    """Return the checkpoint of a run after a round; the arguments are the attributes of `Checkpoint`."""
    sites = strategy.states if strategy.states.kept.any() or strategy.states.since.any() else None
    state, memories = ({} if payload is None else payload.arrays() for payload in (strategy.snapshot(), sites))
    return Checkpoint(server_round, model, state, memories, best, choice, data)


def restore(strategy: PayloadStrategy, checkpoint: Checkpoint, like: list[FloatArray]) -> None:
    """Set the strategy's state and its record of the clients' memories to a checkpoint's.

    Args:
        strategy: The strategy, after its handshake.
        checkpoint: The checkpoint.
        like: A model of the run, whose shapes and number types the checkpoint's models must have.

    Raises:
        ValueError, LookupError: The checkpoint does not fit the run.
    """
    check_model(checkpoint.model, like)
    if strategy.state_type is None and checkpoint.state:
        raise PayloadError(f"{type(strategy).__name__} keeps no state, got {', '.join(checkpoint.state)}")
    if strategy.state_type is not None and checkpoint.state:
        strategy.restore(strategy.state_type.from_arrays(checkpoint.state, {"d": len(like[0])}))
    if checkpoint.sites:
        strategy.states = SiteStates.from_arrays(checkpoint.sites, {"n": len(strategy.roster)})
    if (best := checkpoint.choice.selected) is not None:
        check_model(best.models[""], strategy.output(checkpoint.server_round, checkpoint.model))


def write_checkpoint(path: Path, run: str, checkpoint: Checkpoint) -> None:
    """Write the checkpoint of a run.

    Args:
        path: The file. Its name contains the round, ``round-000010.safetensors``, as `read_checkpoint` requires.
        run: The run's token, which `read_checkpoint` compares.
        checkpoint: The checkpoint.
    """
    parts = {"model": _name(checkpoint.model), "strategy": checkpoint.state, "sites": checkpoint.sites}
    metadata = {"run": run, "round": str(checkpoint.server_round), "best": json.dumps(checkpoint.best)}
    if checkpoint.data is not None:
        metadata["data"] = json.dumps(checkpoint.data)
    choice = checkpoint.choice
    if (selected := choice.selected) is not None:
        parts |= {add_suffix(_SELECTED, view): _name(model) for view, model in selected.models.items()}
        metadata[_SELECTED] = json.dumps([selected.server_round, selected.value, selected.waited])
    chosen = {"threshold": choice.threshold, "calibration": choice.calibration}
    metadata |= {name: json.dumps(entry) for name, entry in chosen.items() if entry is not None}
    arrays = {f"{part}.{name}": value for part, entries in parts.items() for name, value in entries.items()}
    write_sealed(path, CHECKPOINT_FORMAT, CHECKPOINT_VERSION, arrays, metadata)


def read_checkpoint(path: Path, run: str) -> Checkpoint:
    """Return the checkpoint in a file.

    Raises:
        PayloadError: The file is truncated, damaged, of another version or run, or not a checkpoint.
    """
    arrays, metadata = read_sealed(path, CHECKPOINT_FORMAT, CHECKPOINT_VERSION)
    if metadata.get("run") != run:
        raise PayloadError(f"{path}: of another run: {metadata.get('run')!r}, expected {run!r}")
    if path.stem != f"round-{metadata.get('round', ''):0>6}":
        raise PayloadError(f"{path}: of round {metadata.get('round')!r}, which differs from its name")
    parts: dict[str, dict[str, NDArray[Any]]] = {"model": {}, "strategy": {}, "sites": {}}
    known = (*parts, *([_SELECTED] if _SELECTED in metadata else []))
    for name, value in arrays.items():
        part, _, field = name.partition(".")
        if part.partition("_")[0] not in known:
            raise PayloadError(f"{path}: unknown array {name!r}, allowed: {', '.join(f'{p}.*' for p in known)}")
        parts.setdefault(part, {})[field] = value
    model = _read_model(path, "model", parts)
    try:
        best = {str(name): float(value) for name, value in json.loads(metadata.get("best", "")).items()}
    except (ValueError, TypeError, AttributeError):
        raise PayloadError(f"{path}: 'best' is {metadata.get('best')!r}, expected numbers by name") from None
    selected = None
    if _SELECTED in metadata:
        models = {
            part.removeprefix(_SELECTED).removeprefix("_"): _read_model(path, part, parts)
            for part in (_SELECTED, *(part for part in parts if part.startswith(f"{_SELECTED}_")))
        }
        try:
            server_round, chosen, waited = json.loads(metadata[_SELECTED])
            selected = Selected(int(server_round), float(chosen), int(waited), models)
        except (ValueError, TypeError):
            got = f"{_SELECTED!r} is {metadata[_SELECTED]!r}"
            raise PayloadError(f"{path}: {got}, expected a round, a value and a count") from None
    choice = Choice(selected, *(json.loads(metadata.get(name, "null")) for name in ("threshold", "calibration")))
    data = json.loads(metadata["data"]) if "data" in metadata else None
    return Checkpoint(int(metadata["round"]), model, parts["strategy"], parts["sites"], best, choice, data)


def _name(model: list[FloatArray]) -> dict[str, NDArray[Any]]:
    return dict(zip(MODEL_ARRAYS, model, strict=False))


def _read_model(path: Path, part: str, parts: Mapping[str, dict[str, NDArray[Any]]]) -> list[FloatArray]:
    arrays = parts.get(part, {})
    if tuple(sorted(arrays, reverse=True)) not in (MODEL_ARRAYS[:1], MODEL_ARRAYS):
        raise PayloadError(f"{path}: {part} of {sorted(arrays)}, expected {list(MODEL_ARRAYS)}")
    return [arrays[name] for name in MODEL_ARRAYS if name in arrays]
