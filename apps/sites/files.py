"""Writing and reading of array files. A crash never leaves a partial file: it is written elsewhere, then renamed.

A *sealed* file is a safetensors file whose metadata contain a format, a version and a hash of all other content.
Reading detects truncated and changed files.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as save_tensors

from payloads.record import PayloadError
from problems.files import write_atomic

FORMAT, VERSION, SEAL = "format", "version", "sha256"


def write_tensors(
    path: Path,
    arrays: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, str],
    *,
    private: bool = False,
    flushed: bool = True,
) -> None:
    """Write named arrays as a safetensors file, atomically.

    Args:
        path: The path of the file.
        arrays: The arrays by name.
        metadata: Texts by name, for the file's header.
        private: As for `write_atomic`.
        flushed: As for `write_atomic`.
    """
    contiguous = {name: value.copy(order="C") for name, value in arrays.items()}
    write_atomic(path, save_tensors(contiguous, dict(metadata)), private=private, flushed=flushed)


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the named arrays and the metadata of a safetensors file. Nothing in the file is executed.

    Raises:
        PayloadError: The file is missing, truncated or not safetensors, or has number types that NumPy lacks.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = dict(file.metadata() or {})
    except (SafetensorError, OSError, AttributeError, TypeError, ValueError) as error:
        raise PayloadError(f"{path}: {error}") from None
    for name, value in arrays.items():
        if value.dtype.kind not in "biuf":  # another package may register further types with NumPy
            raise PayloadError(f"{path}: {name} has number type {value.dtype}")
    return arrays, metadata


def write_sealed(
    path: Path,
    kind: str,
    version: str,
    arrays: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, str],
    *,
    private: bool = False,
    flushed: bool = True,
) -> None:
    """Write a sealed file, atomically.

    Args:
        path: The path of the file.
        kind: The name of the format. `read_sealed` compares it and the version.
        version: The version of the format.
        arrays: The arrays by name.
        metadata: Further texts by name.
        private: As for `write_atomic`.
        flushed: As for `write_atomic`.
    """
    header = {**metadata, FORMAT: kind, VERSION: version}
    write_tensors(path, arrays, {**header, SEAL: _seal(arrays, header)}, private=private, flushed=flushed)


def read_sealed(
    path: Path, kind: str, version: str, expected: Mapping[str, str] | None = None
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the named arrays and the metadata of a sealed file.

    Args:
        path: The path of the file.
        kind: The name of the format.
        version: The version of the format.
        expected: Further texts that the metadata must contain, by name.

    Raises:
        PayloadError: The file is missing, truncated, of another format or version, changed since it was written, or its
            metadata are not as expected.
    """
    arrays, metadata = read_tensors(path)
    got = metadata.get(FORMAT, "none"), metadata.get(VERSION, "none")
    if got != (kind, version):
        raise PayloadError(f"{path}: format {got[0]!r} of version {got[1]!r}, expected {kind!r} of version {version!r}")
    if metadata.pop(SEAL, "") != _seal(arrays, metadata):
        raise PayloadError(f"{path}: its content was changed after it was written (sha256)")
    for name, wanted in (expected or {}).items():
        if metadata.get(name) != wanted:
            raise PayloadError(f"{path}: {name} {metadata.get(name)!r}, expected {wanted!r}")
    return arrays, metadata


def _seal(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name, value in sorted(arrays.items()):
        digest.update(json.dumps([name, value.dtype.str, value.shape]).encode())
        digest.update(value.tobytes())
    return digest.hexdigest()
