"""The messages of plain clients, which know Flower's own messages, but neither the handshake nor payloads.

There are two kinds of plain clients. The ClientApp has functions with ``@app.train()`` ("message"), or it is made from
a function that returns a ``NumPyClient`` ("numpy"). A strategy sees the model as one flat vector, and a plain client
gets it as the arrays from which the run began, under their own names.
"""

import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from payloads.flower_internals import NO_QUERY_FUNCTION, NO_QUERY_MESSAGES, fill, values_of
from payloads.handshake import MOST_ROWS
from payloads.record import FloatArray, PayloadError
from payloads.wire import ARRAYS, CONFIG, NUM_EXAMPLES, decode_array, encode_array, model_record

FLORILEGIUM, MESSAGE, NUMPY = CLIENTS = ("florilegium", "message", "numpy")
"""The kinds of clients: our own, which answer the handshake, and the two kinds of plain clients."""

# the end of the names of PyTorch's batch-norm statistics
_STATISTICS = ("running_mean", "running_var")


def _decode(name: str, array: Array) -> NDArray[Any]:
    try:
        return decode_array(array)
    except Exception as error:  # untrusted bytes: NumPy's reader raises a dozen types
        raise PayloadError(f"model: {name!r} cannot be read ({type(error).__name__}: {error})") from None


@dataclass(frozen=True)
class NamedArray:
    """An array of a plain model.

    Attributes:
        name, shape, dtype: The array's name, shape and number type.
        is_buffer: Whether the array is a buffer, which is averaged but never stepped: whole numbers, and statistics of
            batch norm.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_buffer: bool

    def read(self, array: Array) -> NDArray[np.float64]:
        """Return the flat values of an array of this name in a record.

        Raises:
            PayloadError: The array is not of numbers, or has another shape.
        """
        value = _decode(self.name, array)
        if value.shape != self.shape or value.dtype.kind not in "fiub":
            raise PayloadError(f"model: {self.name!r} is {value.dtype.name}{value.shape}, expected {self.shape}")
        return value.reshape(-1).astype(np.float64)

    def write(self, values: FloatArray) -> Array:
        """Return flat values as this array."""
        rounded = values if self.dtype.kind == "f" else np.rint(values)
        return encode_array(rounded.astype(self.dtype).reshape(self.shape))


@dataclass(frozen=True)
class PlainModel:
    """The arrays of a plain model, in their order, and the number type of the flat vector of its parameters."""

    arrays: tuple[NamedArray, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, record: ArrayRecord) -> "PlainModel":
        """Return the layout of a model.

        Raises:
            PayloadError: An array is not of numbers, or no array has fractions.
        """
        arrays = []
        for name, array in values_of(record).items():
            value = _decode(name, array)
            if value.dtype.kind not in "fiub":
                raise PayloadError(f"model: {name!r} is {value.dtype.name}, expected numbers")
            is_buffer = value.dtype.kind != "f" or name.rpartition(".")[2] in _STATISTICS
            arrays.append(NamedArray(name, value.shape, value.dtype, is_buffer))
        types = [array.dtype for array in arrays if not array.is_buffer]
        if not types:
            raise PayloadError("model: no array of floating-point numbers to train")
        return cls(tuple(arrays), np.result_type(np.float32, *types))

    def flatten(self, record: ArrayRecord, *, by_position: bool = False) -> list[FloatArray]:
        """Return a model of this layout as flat arrays: the parameters and, if there are any, the buffers.

        Args:
            record: The model. Arrays may have other number types.
            by_position: Whether arrays may have other names, since a ``NumPyClient`` returns a list of arrays.

        Raises:
            PayloadError: The record has other arrays.
        """
        encoded, names = values_of(record), [array.name for array in self.arrays]
        if (not by_position and set(encoded) != set(names)) or len(encoded) != len(names):
            got, expected = reprlib.repr(list(encoded)), reprlib.repr(names)
            raise PayloadError(f"model: got {len(encoded)} arrays {got}, expected {len(names)} arrays {expected}")
        blobs = list(encoded.values()) if by_position else [encoded[name] for name in names]
        parts: tuple[list[Any], list[Any]] = ([], [])
        for array, blob in zip(self.arrays, blobs, strict=True):
            parts[array.is_buffer].append(array.read(blob))
        with np.errstate(over="ignore"):  # infinite values are refused later
            parameters = np.concatenate(parts[0]).astype(self.dtype)
        return [parameters, np.concatenate(parts[1])] if parts[1] else [parameters]

    def record(self, flat: Sequence[FloatArray]) -> ArrayRecord:
        """Return flat arrays as a record with the names, shapes and number types of this layout."""
        begins = [0, 0]
        arrays = {}
        for array in self.arrays:
            begin, size = begins[array.is_buffer], math.prod(array.shape)
            arrays[array.name] = array.write(flat[array.is_buffer][begin : begin + size])
            begins[array.is_buffer] += size
        return fill(ArrayRecord, arrays)

    def flat_record(self, record: ArrayRecord) -> ArrayRecord:
        """Return a model of this layout as a record of flat arrays."""
        return model_record(self.flatten(record))


def plain_content(kind: str, arrays: ArrayRecord, config: ConfigRecord, *, evaluates: bool = False) -> RecordDict:
    """Return the content of a message to a plain client.

    Args:
        kind: The kind of client, one of `CLIENTS` except the first.
        arrays: The model.
        config: Scalars.
        evaluates: Whether the client evaluates the model instead of training it.
    """
    if kind == MESSAGE:
        return RecordDict({ARRAYS: arrays, CONFIG: config})
    prefix = "evaluateins" if evaluates else "fitins"
    return RecordDict({f"{prefix}.parameters": arrays, f"{prefix}.config": config})


@dataclass(frozen=True)
class PlainReply:
    """A plain client's reply: its models, its number of samples, and its further numbers by name."""

    models: list[ArrayRecord]
    num_examples: int
    metrics: dict[str, float]

    @classmethod
    def read(cls, records: RecordDict) -> "PlainReply":
        """Read a reply of either kind of client, whatever the names of its records.

        Raises:
            PayloadError: The client failed, or its number of samples is missing or impossible.
        """
        values: dict[str, Any] = {}
        for name, record in values_of(records).items():
            if name.endswith(".status"):
                status = values_of(record)
                if status.get("code"):
                    raise PayloadError(f"the client failed: {status.get('message') or status['code']}")
            elif isinstance(record, MetricRecord | ConfigRecord):
                values |= values_of(record)
        examples = values.pop("num_examples", values.pop(NUM_EXAMPLES, None))
        if type(examples) not in (int, float) or not 0 <= examples <= MOST_ROWS:
            got = "no" if examples is None else reprlib.repr(examples)
            raise PayloadError(f"reply with {got} {NUM_EXAMPLES}, expected a number from 0 to {MOST_ROWS:,}")
        kinds = (int, float)
        numbers = {key: float(value) for key, value in values.items() if type(value) in kinds and abs(value) < 2**64}
        models = [record for record in values_of(records).values() if isinstance(record, ArrayRecord)]
        return cls(models, int(examples), numbers)


def kind_of(reason: str) -> str:
    """Return the kind of a client from its error about a message of another kind; "" for other errors.

    Args:
        reason: The error's text. It only selects an advice, since a client may send any text.
    """
    unread = {f"'{ARRAYS}'": MESSAGE, f"'{CONFIG}'": MESSAGE, "'fitins.parameters'": NUMPY}
    texts = {NO_QUERY_FUNCTION: MESSAGE, NO_QUERY_MESSAGES: NUMPY, **unread}
    return next((kind for text, kind in texts.items() if text in reason), "")


def mean_metrics(replies: Sequence[PlainReply], weights: Sequence[float]) -> dict[str, float]:
    """Return the mean of each number that all replies have.

    Args:
        replies: The replies.
        weights: The weight of each reply.
    """
    if not replies or not sum(weights):
        return {}
    common = [name for name in replies[0].metrics if all(name in reply.metrics for reply in replies)]
    return {name: float(np.average([reply.metrics[name] for reply in replies], weights=weights)) for name in common}
