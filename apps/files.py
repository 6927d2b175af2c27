"""Files that are whole or not there: written beside their place, flushed to disk, then renamed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as save_tensors

from payloads.record import PayloadError


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a crash, finds the old one or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_tensors(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """Write named arrays as one safetensors file, atomically."""
    contiguous = {name: value.copy(order="C") for name, value in arrays.items()}
    write_atomic(path, save_tensors(contiguous, dict(metadata)))


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Named arrays and metadata of a safetensors file; nothing in it is executed.

    Raises:
        PayloadError: the file is missing, truncated or not safetensors.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise PayloadError(f"{path}: {error}") from None
