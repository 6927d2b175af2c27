"""The layout of every message: the model in "arrays", further arrays in "payload", scalars in "config" or "metrics"."""

import io
import math
import reprlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, Literal, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from payloads.flower_internals import fill, values_of
from payloads.record import FloatArray, PayloadError, not_finite

ARRAYS = "arrays"
PAYLOAD = "payload"
CONFIG = "config"
METRICS = "metrics"
# paths on a disk that server and client share; never sent in a deployment
LOCAL = "local"
# the common scaling of columns, if sites read their own tables
SCALING = "scaling"
# the participants of a secure sum
PRESENT = "present"

ROUND = "server-round"
# the name of a message's exchange; absent in a round's main exchange
PHASE = "phase"
# the run's unique name, under which clients keep files
RUN_TOKEN = "run-token"
NUM_EXAMPLES = "num-examples"
# the stage of a secure sum that a message asks for
STAGE = "stage"
# in all messages of a secure sum: the sum's number, counted over the run
SUM_NUMBER = "sum-number"
# the samples of the largest client, in a message whose reply is a term of a secure sum; absent with equal weights
LARGEST_SITE = "largest-site"
# with steps-by-rows: the rows of the largest site, and the mean number of local steps
MOST_ROWS = "most-rows"
MEAN_STEPS = "mean-steps"
# in the reply of a client with a memory: the round of the memory from which the client started; 0: no memory yet
STATE_ROUND = "state-round"
# in a message's config: memories made before this round are invalid
STATE_SINCE = "state-since"

# the records of a message to a client, with their types
_DOWN = {
    ARRAYS: ArrayRecord,
    **dict.fromkeys((PAYLOAD, CONFIG, LOCAL, SCALING, PRESENT), ConfigRecord),
}
# One flat vector, and the floating-point buffers (batch-norm statistics) if the model has any.
MODEL_ARRAYS = ("parameters", "buffers")
# the scalars of a message
Values = dict[str, Any]
_FLOATS = (np.dtype("float32"), np.dtype("float64"))


def model_record(arrays: Sequence[FloatArray]) -> ArrayRecord:
    """Return the model as Flower's record.

    Args:
        arrays: The parameters (d,) and, if the model has any, the buffers (b,).

    Example:
        >>> list(model_record([np.ones(3)]))
        ['parameters']
    """
    return fill(ArrayRecord, {name: encode_array(value) for name, value in zip(MODEL_ARRAYS, arrays, strict=False)})


def model_arrays(record: ArrayRecord) -> list[FloatArray]:
    """Return the flat arrays of a model record, in order, read-only and without a copy.

    Raises:
        PayloadError: The record is not a flat model, or its bytes are not an array.

    Example:
        >>> model_arrays(model_record([np.ones(3)]))[0].tolist()
        [1.0, 1.0, 1.0]
    """
    encoded = values_of(record)
    if tuple(encoded) not in (MODEL_ARRAYS[:1], MODEL_ARRAYS):
        raise PayloadError(f"model: got arrays {reprlib.repr(list(encoded))}, expected {list(MODEL_ARRAYS)}")
    try:
        arrays = [decode_array(value) for value in encoded.values()]
    except Exception as error:  # untrusted bytes: NumPy's reader raises a dozen types
        raise PayloadError(f"model: an array cannot be read ({type(error).__name__}: {error})") from None
    for name, value in zip(encoded, arrays, strict=True):
        if value.ndim != 1 or value.dtype not in _FLOATS:
            raise PayloadError(f"model: {name!r} is {value.dtype.name}{value.shape}, expected a flat float vector")
    return arrays


def ready_to_send(value: FloatArray) -> FloatArray:
    """Return a read-only copy inside the bytes that will be sent, so `model_record` need not copy the array again."""
    header = _npy_header_for(value.dtype.str, value.shape)
    data = b"".join((header, np.ascontiguousarray(value).data))
    return np.frombuffer(data, value.dtype, offset=len(header)).reshape(value.shape)


def encode_array(value: NDArray[Any]) -> Array:
    """Return ``Array(value)``, made with one copy at most and a cached header."""
    header = _npy_header_for(value.dtype.str, value.shape)
    data = _bytes_around(value, header) or b"".join((header, np.ascontiguousarray(value).data))
    array = Array.__new__(Array)  # its slow constructor distinguishes three sets of arguments
    array.__dict__.update(dtype=_name_of(value.dtype), shape=value.shape, stype="numpy.ndarray", data=data)
    return array


def _bytes_around(value: NDArray[Any], header: bytes) -> bytes | None:
    """Return the bytes that contain an array, if they are exactly its header and its data; else None."""
    below: object = value
    while isinstance(below, np.ndarray):
        below = below.base
    if type(below) is not bytes or len(below) != len(header) + value.nbytes or not below.startswith(header):
        return None
    begin = _address(np.frombuffer(below, np.uint8)) + len(header)
    return below if value.flags.c_contiguous and _address(value) == begin else None


def _address(value: NDArray[Any]) -> int:
    address: int = value.__array_interface__["data"][0]  # .ctypes.data would build a Python object
    return address


_name_of = lru_cache(maxsize=16)(str)


@lru_cache(maxsize=64)
def _npy_header_for(descr: str, shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


def decode_array(array: Array) -> NDArray[Any]:
    """Return an array as a read-only view of its bytes.

    Raises:
        ValueError: The bytes are not an array of numbers in NumPy's format. Other exceptions are possible, too, since
            a client may send any bytes.
    """
    if array.stype != "numpy.ndarray":
        raise ValueError(f"serialised as {array.stype!r}, expected 'numpy.ndarray'")
    data = array.data
    start = _npy_header(data)
    dtype, shape, order = _npy_layout(bytes(data[:start]))
    if len(data) - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(data) - start} bytes for shape {shape} of {dtype.name}")
    value: NDArray[Any] = np.frombuffer(data, dtype=dtype, offset=start).reshape(shape, order=order)
    return value


@lru_cache(maxsize=64)
def _npy_layout(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], Literal["C", "F"]]:
    file = io.BytesIO(header)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("not an array in NumPy's format 1.0")
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.hasobject:
        raise ValueError("an array of objects")
    return dtype, shape, "F" if fortran_order else "C"


def check_model(arrays: Sequence[FloatArray], like: Sequence[FloatArray]) -> None:
    """Check a model against a model of the right shape.

    Args:
        arrays: The model to check.
        like: The model of the right shape and dtype.

    Raises:
        PayloadError: A wrong number of arrays, a wrong shape or dtype, or values that are not finite.
    """
    if len(arrays) != len(like):
        raise PayloadError(f"model: got {len(arrays)} arrays, expected {len(like)}")
    for name, value, expected in zip(MODEL_ARRAYS, arrays, like, strict=False):
        if value.shape != expected.shape or value.dtype != expected.dtype:
            raise PayloadError(
                f"model: {name!r} is {value.dtype.name}{value.shape}, expected {expected.dtype.name}{expected.shape}"
            )
        if bad := not_finite(value):
            raise PayloadError(f"model: {bad} of {value.size} values of {name!r} are not finite")


def content(
    *,
    arrays: ArrayRecord | None = None,
    config: ConfigRecord | None = None,
    payload: ConfigRecord | None = None,
    metrics: Mapping[str, float | int] | None = None,
    local: ConfigRecord | None = None,
    scaling: ConfigRecord | None = None,
    present: ConfigRecord | None = None,
) -> RecordDict:
    """Make a message's content from its parts. Parts that are None are not sent.

    Args:
        arrays: The model.
        config: Scalars for a client, or facts about a site (such as its device) in the handshake.
        payload: The payload.
        metrics: Numbers in a client's reply, by name.
        local: Paths on a disk that server and client share. None in a deployment.
        scaling: The common scaling of columns.
        present: The participants of a secure sum.
    """
    numbers = None
    if metrics is not None:
        # other types go to Flower's constructor, which refuses them
        plain = all(type(value) in (int, float) for value in metrics.values())
        numbers = fill(MetricRecord, metrics) if plain else MetricRecord(dict(metrics))
    parts = {
        ARRAYS: arrays,
        CONFIG: config,
        PAYLOAD: payload,
        METRICS: numbers,
        LOCAL: local,
        SCALING: scaling,
        PRESENT: present,
    }
    return fill(RecordDict, {name: part for name, part in parts.items() if part is not None})


def digest(records: RecordDict, kind: str) -> bytes:
    """Return a SHA-256 hash of a whole message, 32 bytes.

    Every part is hashed with its type and its length, so different messages never give the same bytes to hash.

    Args:
        records: The message's content.
        kind: Flower's type of the message.
    """
    parts: list[bytes] = [kind.encode()]
    for name, record in sorted(values_of(records).items()):
        values = values_of(record)
        parts += [type(record).__name__.encode(), name.encode(), len(values).to_bytes(8, "big")]
        for key, value in sorted(values.items()):
            parts += parts_of(key, value)
    return _hash(tuple(parts))


def parts_of(key: str, value: object) -> list[bytes]:
    """Return the parts of a record's entry for `hash_parts`: its type, its key and its value."""
    parts = [type(value).__name__.encode(), key.encode()]
    if isinstance(value, Array):
        return [*parts, f"{value.dtype} {tuple(value.shape)} {value.stype}".encode(), value.data]
    return [*parts, value if isinstance(value, bytes) else repr(value).encode()]


def hash_parts(parts: Sequence[bytes]) -> bytes:
    """Return a SHA-256 hash of parts with their lengths, 32 bytes."""
    state = sha256()
    for part in parts:
        state.update(len(part).to_bytes(8, "big"))
        state.update(part)
    return state.digest()


_hash = lru_cache(maxsize=1)(hash_parts)  # all clients of a process get the same message


def check_records(records: RecordDict) -> None:
    """Refuse a message to a client with a record that no client reads.

    Raises:
        PayloadError: The message has an unknown record, or a record of the wrong type.
    """
    for name, record in values_of(records).items():
        if type(record) is not (expected := _DOWN.get(name)):
            wanted = ", ".join(_DOWN) if expected is None else expected.__name__
            raise PayloadError(f"message with {type(record).__name__} {name!r}, allowed: {wanted}")


def count_bytes(records: RecordDict) -> int:
    """Return the bytes of the values in a message: model, payload, scaling, and participants of a secure sum.

    Overhead does not count: array headers (64 to 128 bytes each), names, the scalars of "config" and "metrics",
    Flower's envelope and the transport's.
    """
    counted = 0
    for name, record in values_of(records).items():
        for value in values_of(record).values() if name in (ARRAYS, PAYLOAD, SCALING, PRESENT) else ():
            if isinstance(value, Array):
                counted += len(value.data) - _npy_header(value.data)
            elif isinstance(value, bytes):
                counted += max(len(value) - 8 - int.from_bytes(value[:8], "little"), 0)  # safetensors' header
    return counted


R = TypeVar("R", ArrayRecord, ConfigRecord, MetricRecord)


def find(records: RecordDict, name: str, kind: type[R]) -> R | None:
    """Return the record of a name and kind, or None. Faster than ``RecordDict.config_records``."""
    record = values_of(records).get(name)
    return record if isinstance(record, kind) else None


def need(records: RecordDict, name: str, kind: type[R]) -> R:
    """Return the record of a name and kind, which must be present.

    Raises:
        PayloadError: The record is missing. The error names it.
    """
    record = find(records, name, kind)
    if record is None:
        raise PayloadError(f"message without the record {name!r}")
    return record


def _npy_header(blob: bytes) -> int:
    # NEP 1, format 1.0: magic, version, two bytes of length, then the header
    return min(10 + int.from_bytes(blob[8:10], "little"), len(blob))
