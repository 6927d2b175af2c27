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
# where server and client share a disk: paths on it. Never sent in a deployment, never counted.
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
    except (ValueError, TypeError, EOFError, OSError) as error:
        raise PayloadError(f"model: an array cannot be read ({error})") from None
    for name, value in zip(record, arrays, strict=True):
        if value.ndim != 1 or value.dtype.name not in ("float32", "float64"):
            raise PayloadError(f"model: {name!r} is {value.dtype.name}{value.shape}, expected a flat float vector")
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
    """Bytes of a message's content as Flower counts them (values, keys and array headers)."""
    return sum(record.count_bytes() for name, record in records.items() if name != LOCAL)
