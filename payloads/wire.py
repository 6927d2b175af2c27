"""The layout of every message: model in "arrays", extras in "payload", scalars in "config" and "metrics"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from payloads.record import FloatArray, Payload, PayloadError

ARRAYS = "arrays"
PAYLOAD = "payload"
CONFIG = "config"
METRICS = "metrics"
# where server and client share a disk: paths on it. Never sent in a deployment.
LOCAL = "local"

ROUND = "server-round"
NUM_EXAMPLES = "num-examples"

# One flat vector, and the floating-point buffers (batch-norm statistics) where the model has any.
MODEL_ARRAYS = ("parameters", "buffers")


def model_record(arrays: Sequence[FloatArray]) -> ArrayRecord:
    """The model as Flower's record: ``parameters`` (d,) and, where there are any, ``buffers`` (b,)."""
    named = zip(MODEL_ARRAYS, arrays, strict=False)
    return ArrayRecord({name: Array(np.ascontiguousarray(value)) for name, value in named})


def model_arrays(record: ArrayRecord) -> list[FloatArray]:
    """The flat arrays of a model record, in order.

    Raises:
        PayloadError: the record is not a flat model, or its bytes are not an array.
    """
    if tuple(record) not in (MODEL_ARRAYS[:1], MODEL_ARRAYS):
        raise PayloadError(f"model: got arrays {list(record)}, expected {list(MODEL_ARRAYS)}")
    try:
        arrays = [value.numpy() for value in record.values()]
    except Exception as error:  # bytes from elsewhere: NumPy's reader raises a dozen types
        raise PayloadError(f"model: an array cannot be read ({type(error).__name__}: {error})") from None
    for name, value in zip(record, arrays, strict=True):
        if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.name not in ("float32", "float64"):
            got = f"{value.dtype.name}{value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
            raise PayloadError(f"model: {name!r} is {got}, expected a flat float vector")
    return arrays


def check_model(arrays: Sequence[FloatArray], like: Sequence[FloatArray]) -> None:
    """Hold a model against one of the right shape.

    Raises:
        PayloadError: a wrong number of arrays, a wrong shape or dtype, or values that are not finite.
    """
    if len(arrays) != len(like):
        raise PayloadError(f"model: got {len(arrays)} arrays, expected {len(like)}")
    for name, value, expected in zip(MODEL_ARRAYS, arrays, like, strict=False):
        if value.shape != expected.shape or value.dtype != expected.dtype:
            raise PayloadError(
                f"model: {name!r} is {value.dtype.name}{value.shape}, expected {expected.dtype.name}{expected.shape}"
            )
        if not np.isfinite(value).all():
            bad = int(value.size - np.isfinite(value).sum())
            raise PayloadError(f"model: {bad} of {value.size} values of {name!r} are not finite")


def content(
    *,
    arrays: ArrayRecord | None = None,
    config: ConfigRecord | None = None,
    payload: ConfigRecord | None = None,
    metrics: Mapping[str, float | int] | None = None,
    local: ConfigRecord | None = None,
) -> RecordDict:
    """A message's content from its parts; an absent part does not travel."""
    records = RecordDict()
    if arrays is not None:
        records[ARRAYS] = arrays
    if config is not None:
        records[CONFIG] = config
    if payload is not None:
        records[PAYLOAD] = payload
    if metrics is not None:
        records[METRICS] = MetricRecord(dict(metrics))
    if local is not None:
        records[LOCAL] = local
    return records


def payload_record(payload: Payload | None) -> ConfigRecord | None:
    """Encode a payload, or None for an algorithm without extras."""
    return None if payload is None else payload.to_record()


def count_bytes(records: RecordDict) -> int:
    """Bytes of the values that a message carries: model and payload.

    What any encoding adds is left out: array headers (64 to 128 bytes each), names, the scalars of "config" and
    "metrics", Flower's envelope and the transport's.
    """
    blobs = [array.data for array in records.array_records.get(ARRAYS, ArrayRecord()).values()]
    fields = [blob for blob in records.config_records.get(PAYLOAD, ConfigRecord()).values() if isinstance(blob, bytes)]
    return sum(len(blob) - _npy_header(blob) for blob in blobs) + sum(len(b) - _safetensors_header(b) for b in fields)


def _npy_header(blob: bytes) -> int:
    # NEP 1, format 1.0: magic, version, two bytes of length, then the header
    return min(10 + int.from_bytes(blob[8:10], "little"), len(blob))


def _safetensors_header(blob: bytes) -> int:
    return min(8 + int.from_bytes(blob[:8], "little"), len(blob))
