"""Payloads: typed records of named arrays. All data in messages and checkpoints except the model are payloads.

A payload class declares its fields with their dimensions, `scores: NDArray = array("p")`. Each field is encoded
separately with safetensors (dtype and shape inside, no pickle) as one bytes entry of a Flower ``ConfigRecord``.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, Self

import numpy as np
from flwr.app import ConfigRecord
from numpy.typing import NDArray
from safetensors import numpy as safetensors_numpy

from payloads.flower_internals import fill, values_of

FloatArray = NDArray[np.floating[Any]]
IntArray = NDArray[np.signedinteger[Any]]
BoolArray = NDArray[np.bool_]

Kind = Literal["float", "int", "bool", "bytes"]
Combined = Literal["", "mean", "total"]
_DTYPES: dict[Kind, tuple[np.dtype[Any], ...]] = {
    "float": (np.dtype("float32"), np.dtype("float64")),
    "int": (np.dtype("int32"), np.dtype("int64")),
    "bool": (np.dtype("bool"),),
    "bytes": (np.dtype("uint8"),),
}
_TENSOR = "value"
# safetensors' names of number types, including types that no field has: errors can then name a wrong type.
_DTYPE_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
# the limit of the header before an array's bytes; our headers have less than 100 bytes
_LONGEST_HEADER = 4096


class PayloadError(ValueError):
    """A record that differs from its declaration. The message names the field, the value and the expected value."""


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """The arguments of `array`."""

    dims: tuple[str | int, ...]
    kind: Kind
    optional: bool
    finite: bool
    secret: bool
    combined: Combined


def array(
    *dims: str | int,
    kind: Kind = "float",
    optional: bool = False,
    finite: bool = True,
    secret: bool = False,
    combined: Combined = "",
) -> Any:
    """Declare a payload field.

    Args:
        dims: The length of each dimension: a number, or a letter. A letter stands for the same length in all fields of
            a record, and for the length that the receiver expects, if any.
        kind: "float" (float32 or float64), "int" (int32 or int64), "bool" or "bytes" (uint8).
        optional: Whether the field may be None. A field that is None is not sent.
        finite: Whether the receiver refuses NaN and infinities.
        secret: Whether the field must never be written to a disk. Secret fields must be optional.
        combined: With secure sums, the value that the server needs: the "mean" over the clients, weighted like their
            models, or their "total" (of an "int"). "": each client's value, so secure sums are impossible.

    Example:
        >>> @dataclasses.dataclass(frozen=True, eq=False)
        ... class Moment(Payload):
        ...     value: NDArray[Any] = array("d")
        >>> specs_of(Moment)["value"].kind
        'float'
    """
    if secret and not optional:
        raise ValueError("a secret field must be optional, since records read from a disk lack it; set optional=True")
    spec = ArraySpec(dims, kind, optional, finite, secret, combined)
    default = None if optional else dataclasses.MISSING
    return dataclasses.field(default=default, metadata={"spec": spec}, kw_only=True)


_specs: dict[type, dict[str, ArraySpec]] = {}


def specs_of(payload: type[Payload]) -> dict[str, ArraySpec]:
    """Return the declared fields of a payload class, in order."""
    if payload not in _specs:
        _specs[payload] = {field.name: field.metadata["spec"] for field in dataclasses.fields(payload)}
    return _specs[payload]


@dataclasses.dataclass(frozen=True, eq=False)
class Payload:
    """Base of all records. Subclasses are frozen dataclasses of `array` fields.

    Example:
        >>> @dataclasses.dataclass(frozen=True, eq=False)
        ... class Moment(Payload):
        ...     value: NDArray[Any] = array("d")
        >>> Moment(value=np.zeros(3)).check({"d": 3}).arrays()
        {'value': array([0., 0., 0.])}
    """

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the fields that are present, by name."""
        return {name: value for name in specs_of(type(self)) if (value := getattr(self, name)) is not None}

    def durable(self) -> dict[str, NDArray[Any]]:
        """Return the fields that are present and may be written to a disk, by name."""
        specs = specs_of(type(self))
        return {name: value for name, value in self.arrays().items() if not specs[name].secret}

    def check(self, sizes: dict[str, int] | None = None, *, finite: bool = True) -> Self:
        """Check every field against its declaration, and return the payload.

        Args:
            sizes: The lengths that the caller expects, by dimension letter.
            finite: Whether fields that must be finite are checked for NaN and infinities.

        Raises:
            PayloadError: A field differs from its declaration, or has an unexpected length.
        """
        known = {} if sizes is None else dict(sizes)
        for name, spec in specs_of(type(self)).items():
            value = getattr(self, name)
            if (value is not None or not spec.optional) and (fault := _find_fault(value, spec, known, finite)):
                raise PayloadError(f"{type(self).__name__}.{name}: {fault}")
        return self

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], sizes: dict[str, int] | None = None) -> Self:
        """Return the payload of arrays by name, after `check`.

        Raises:
            PayloadError: A field is unknown, missing, misshapen or not finite.
        """
        return cls(**{name: arrays.get(name) for name in cls._check_names(arrays)}).check(sizes)

    @classmethod
    def _check_names(cls, fields: Mapping[str, Any]) -> dict[str, ArraySpec]:
        """Return the declared fields; raise `PayloadError` if ``fields`` has an undeclared field."""
        declared = specs_of(cls)
        if not fields.keys() <= declared.keys():
            unknown = min(fields.keys() - declared.keys())
            raise PayloadError(f"{cls.__name__}: unknown field {unknown!r}, allowed: {', '.join(declared)}")
        return declared

    def to_record(self) -> ConfigRecord:
        """Encode as a Flower record, one safetensors entry per field, after a check of shapes and dtypes."""
        self.check(finite=False)
        encoded = {
            name: b"".join((_header_for(value.dtype, value.shape), np.ascontiguousarray(value).data))
            for name, value in self.arrays().items()
        }
        return fill(ConfigRecord, encoded)

    @classmethod
    def from_record(
        cls, record: ConfigRecord, sizes: dict[str, int] | None = None, limits: Mapping[str, int] | None = None
    ) -> Self:
        """Decode and validate a record. The arrays are read-only, and share the record's bytes.

        Args:
            record: The record.
            sizes: The lengths that the caller expects, by dimension letter.
            limits: The maximum lengths of all other dimensions, so an untrusted sender cannot exhaust the receiver's
                memory. A field's size is checked before the field is read.

        Raises:
            PayloadError: A field is unknown, missing, too long, not safetensors, misshapen or not finite.
        """
        blobs = values_of(record)
        specs = cls._check_names(blobs)
        values: dict[str, NDArray[Any] | None] = dict.fromkeys(specs)
        bounds = None if limits is None else {**limits, **(sizes or {})}
        for name, blob in blobs.items():
            field = f"{cls.__name__}.{name}"
            limit = None if bounds is None else _max_shape(field, specs[name].dims, bounds)
            values[name] = _decode(field, blob, limit)
        return cls(**values).check(sizes)


def _find_fault(value: object, spec: ArraySpec, known: dict[str, int], finite: bool) -> str | None:
    """Return the fault of a field's value, or None. Add the lengths of its dimension letters to ``known``."""
    if value is None:
        return "missing"
    allowed = _DTYPES[spec.kind]
    if not isinstance(value, np.ndarray) or value.dtype not in allowed:
        got = value.dtype.name if isinstance(value, np.ndarray) else type(value).__name__
        return f"got {got}, allowed: {' or '.join(dtype.name for dtype in allowed)}"
    expected: list[str | int] = [known.get(dim, dim) for dim in spec.dims]  # type: ignore[arg-type]
    if (shape := list(value.shape)) != expected:  # a letter has no length yet, or the shape is wrong
        for dim, length in zip(expected, shape, strict=False):
            if isinstance(dim, str):
                known.setdefault(dim, length)
        if shape != [known.get(dim, dim) for dim in spec.dims]:  # type: ignore[arg-type]
            return f"got shape {value.shape}, expected {_shape(expected)}"
    if finite and spec.finite and spec.kind == "float" and (bad := not_finite(value)):
        return f"{bad} of {value.size} values are not finite"
    return None


def take_row(fields: Mapping[str, NDArray[Any]], row: int) -> dict[str, NDArray[Any]]:
    """Return one client's fields of a record of many clients.

    Args:
        fields: The fields. Floats have a first axis of clients; all other values are the same for all clients.
        row: The client's index.
    """
    return {name: value[row] if value.dtype.kind == "f" else value for name, value in fields.items()}


def not_finite(value: FloatArray) -> int:
    """Return the number of values that are NaN or infinite."""
    return int(value.size - np.count_nonzero(np.isfinite(value)))


def _max_shape(field: str, dims: tuple[str | int, ...], bounds: Mapping[str, int]) -> list[int]:
    """Return the maximum length of each dimension; raise `PayloadError` if a dimension has no bound."""
    for dim in dims:
        if isinstance(dim, str) and dim not in bounds:
            raise PayloadError(f"{field}: dimension {dim!r} has no limit; the strategy's limits must bound it")
    return [bounds[dim] if isinstance(dim, str) else dim for dim in dims]


def _decode(field: str, blob: object, limit: list[int] | None) -> NDArray[Any]:
    if not isinstance(blob, bytes):
        raise PayloadError(f"{field}: got {type(blob).__name__}, expected safetensors bytes")
    start = 8 + int.from_bytes(blob[:8], "little")
    if start > min(len(blob), _LONGEST_HEADER):
        raise PayloadError(f"{field}: not safetensors bytes (a header of {start} bytes)")
    size = len(blob) - start
    if limit is not None and size > 8 * math.prod(limit):
        raise PayloadError(f"{field}: got {size} bytes, allowed: at most {_shape(limit)} numbers of 8 bytes")
    try:
        dtype, shape = _layout_of(blob[:start], size)
    except PayloadError as error:
        raise PayloadError(f"{field}: {error}") from None
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise PayloadError(f"{field}: not safetensors bytes ({error})") from None
    if limit is not None and any(got > bound for got, bound in zip(shape, limit, strict=False)):
        raise PayloadError(f"{field}: got shape {shape}, allowed: at most {_shape(limit)}")
    try:
        value: NDArray[Any] = np.frombuffer(blob, dtype, offset=start).reshape(shape)
    except ValueError as error:  # more dimensions than NumPy has
        raise PayloadError(f"{field}: got shape {shape} ({error})") from None
    return value


def _shape(lengths: Sequence[str | int]) -> str:
    return "(" + ", ".join(map(str, lengths)) + ")"


# The header before an array's bytes depends only on its dtype and shape, so each header is written and read once.


@lru_cache(maxsize=256)
def _header_for(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    empty = np.zeros(shape, dtype)
    saved: bytes = safetensors_numpy.save({_TENSOR: empty})
    return saved[: len(saved) - empty.nbytes]


@lru_cache(maxsize=256)
def _layout_of(header: bytes, size: int) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the number type and the shape of the array whose ``size`` bytes follow a header."""
    tensors = json.loads(header[8:])
    if not isinstance(tensors, dict):
        raise TypeError("its header is not an object")
    tensors.pop("__metadata__", None)
    if set(tensors) != {_TENSOR}:
        raise PayloadError(f"got tensors {sorted(tensors)}, expected one named {_TENSOR!r}")
    described = tensors[_TENSOR]
    dtype, shape = np.dtype(_DTYPE_NAMES[described["dtype"]]), tuple(described["shape"])
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"shape {shape}")
    if described["data_offsets"] != [0, size] or math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"{size} bytes for shape {shape} of {dtype.name}")
    return dtype, shape
