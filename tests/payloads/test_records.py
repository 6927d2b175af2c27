"""Tests of payloads: decoding returns the encoded values, and malformed payloads raise only PayloadError."""

import importlib
import pickle
import pkgutil
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from numpy.typing import NDArray
from safetensors.numpy import save

import payloads
from payloads.record import ArraySpec, Payload, PayloadError, array, specs_of

for module in pkgutil.iter_modules(payloads.__path__):
    importlib.import_module(f"payloads.{module.name}")


def subclasses(kind: type[Payload]) -> list[type[Payload]]:
    found = [sub for direct in kind.__subclasses__() for sub in (direct, *subclasses(direct))]
    return [sub for sub in found if sub.__module__.startswith("payloads.")]


KINDS = sorted(subclasses(Payload), key=lambda kind: kind.__name__)
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
DTYPES = {"float": ["float32", "float64"], "int": ["int32", "int64"], "bool": ["bool"], "bytes": ["uint8"]}


def values(spec: ArraySpec, lengths: dict[str, int]) -> st.SearchStrategy[NDArray[Any]]:
    """Return arrays that fit a declaration, in both number types."""
    shape = tuple(lengths[dim] if isinstance(dim, str) else dim for dim in spec.dims)

    def of(dtype: str) -> st.SearchStrategy[NDArray[Any]]:
        elements = {"allow_nan": False, "allow_infinity": False} if spec.kind == "float" and spec.finite else None
        return arrays_of.arrays(dtype, shape, elements=elements)

    return st.sampled_from(DTYPES[spec.kind]).flatmap(of)


@st.composite
def instances(draw: st.DrawFn, kind: type[Payload]) -> Payload:
    """Return a valid payload: equal letters have equal lengths, possibly zero; optional fields may be missing."""
    specs = specs_of(kind)
    letters = sorted({dim for spec in specs.values() for dim in spec.dims if isinstance(dim, str)})
    lengths = {letter: draw(st.integers(0, 4)) for letter in letters}
    fields = {
        name: draw(st.none() | values(spec, lengths) if spec.optional else values(spec, lengths))
        for name, spec in specs.items()
    }
    return kind(**fields)


@each_kind
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_round_trip(kind: type[Payload], data: st.DataObject) -> None:
    payload = data.draw(instances(kind))
    record = payload.to_record()
    decoded = kind.from_record(ConfigRecord(dict(record)))
    assert set(record) == set(payload.arrays()) == set(decoded.arrays())
    for name, value in payload.arrays().items():
        got = getattr(decoded, name)
        assert (got.dtype, got.shape, got.tobytes()) == (value.dtype, value.shape, value.tobytes())
        assert not got.flags.writeable
    assert sum(len(blob) for blob in record.values()) >= sum(value.nbytes for value in payload.arrays().values())
    assert dict(decoded.to_record()) == dict(record)


MUTATIONS = ["flip", "cut", "extend", "pickle", "scalar", "other-name", "other-array", "drop", "unknown", "swap"]


@st.composite
def mutated(draw: st.DrawFn, kind: type[Payload]) -> dict[str, Any]:
    """Return a valid record after one to three random changes."""
    record = dict(draw(instances(kind)).to_record())
    assume(record)
    for mutation in draw(st.lists(st.sampled_from(MUTATIONS), min_size=1, max_size=3)):
        name = draw(st.sampled_from(sorted(record)))
        blob = record[name] if isinstance(record[name], bytes) else b"none"
        if mutation == "flip":
            place = draw(st.integers(0, len(blob) - 1))
            record[name] = blob[:place] + bytes([draw(st.integers(0, 255))]) + blob[place + 1 :]
        elif mutation == "cut":
            record[name] = blob[: draw(st.integers(1, len(blob)))]
        elif mutation == "extend":
            record[name] = blob + draw(st.binary(min_size=1, max_size=9))
        elif mutation == "pickle":
            record[name] = pickle.dumps(np.zeros(2))
        elif mutation == "scalar":
            record[name] = draw(st.sampled_from([1, 2.5, True, "text", [1.0], [b"a"]]))
        elif mutation == "other-name":
            record[name] = save({draw(st.sampled_from(["", "values", "x"])): np.zeros(2)})
        elif mutation == "other-array":
            dtype = draw(st.sampled_from(["float16", "uint8", "int8", "float32", "int64", "bool"]))
            record[name] = save({"value": np.zeros(draw(arrays_of.array_shapes(min_dims=0, max_side=3)), dtype)})
        elif mutation == "drop" and len(record) > 1:
            del record[name]
        elif mutation == "unknown":
            record[draw(st.sampled_from(["", "x", name + "s"]))] = blob
        else:
            record[name] = record[draw(st.sampled_from(sorted(record)))]
    return record


@each_kind
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_damaged_record_is_a_payload_or_a_payload_error(kind: type[Payload], data: st.DataObject) -> None:
    record = ConfigRecord(data.draw(mutated(kind)))
    try:
        decoded = kind.from_record(record)
    except PayloadError as error:
        refusal = str(error)
    else:
        assert decoded.check() is decoded  # accepted records are valid
        return
    assert refusal.startswith(kind.__name__)


# Each rejection, with its error.


@dataclass(frozen=True, eq=False)
class Record(Payload):
    """A record with every kind of field."""

    totals: NDArray[Any] = array(2, kind="int")
    scores: NDArray[Any] = array("p")
    table: NDArray[Any] = array("p", "k")
    marks: NDArray[Any] | None = array("p", kind="bool", optional=True)
    free: NDArray[Any] | None = array("f", optional=True, finite=False)
    words: NDArray[Any] | None = array("n", kind="bytes", optional=True)
    key: NDArray[Any] | None = array(1, kind="int", optional=True, secret=True)


def sample(**changes: Any) -> Record:
    fields: dict[str, Any] = {"totals": np.arange(2), "scores": np.ones(3), "table": np.ones((3, 2))}
    return Record(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "Record.scores: missing"),
        ({"scores": [1.0]}, "Record.scores: got list, allowed: float32 or float64"),
        ({"scores": np.ones(3, "float16")}, "Record.scores: got float16, allowed: float32 or float64"),
        ({"totals": np.ones(2, "uint64")}, "Record.totals: got uint64, allowed: int32 or int64"),
        ({"totals": np.arange(3)}, "Record.totals: got shape (3,), expected (2)"),
        ({"marks": np.ones(3)}, "Record.marks: got float64, allowed: bool"),
        ({"marks": np.ones(2, bool)}, "Record.marks: got shape (2,), expected (3)"),
        ({"words": np.arange(3)}, "Record.words: got int64, allowed: uint8"),
        ({"table": np.ones(3)}, "Record.table: got shape (3,), expected (3, k)"),
        ({"table": np.ones((2, 2))}, "Record.table: got shape (2, 2), expected (3, k)"),
        ({"scores": np.array([1, np.nan, np.inf])}, "Record.scores: 2 of 3 values are not finite"),
    ],
)
def test_check_names_the_field_expected_and_got(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PayloadError) as refused:
        sample(**changes).check()
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "Record.scores: missing"),
        ({"extra": save({"value": np.zeros(1)})}, "Record: unknown field 'extra', allowed: totals, scores, table"),
        ({"scores": 1.0}, "Record.scores: got float, expected safetensors bytes"),
        ({"scores": b""}, "Record.scores: not safetensors bytes"),
        ({"scores": pickle.dumps(np.ones(3))}, "Record.scores: not safetensors bytes"),
        ({"scores": save({"value": np.ones(3)}) + b"\0"}, "Record.scores: not safetensors bytes"),
        ({"scores": struct.pack("<Q", 2**62) + b"{}"}, "Record.scores: not safetensors bytes"),
        ({"scores": save({"v": np.ones(3)})}, "Record.scores: got tensors ['v'], expected one named 'value'"),
        ({"scores": save({"value": np.ones(3), "b": np.ones(3)})}, "Record.scores: got tensors ['b', 'value']"),
        ({"scores": save({"value": np.full(3, np.nan)})}, "Record.scores: 3 of 3 values are not finite"),
    ],
)
def test_from_record_names_the_field_expected_and_got(changes: dict[str, Any], message: str) -> None:
    entries = dict(sample().to_record()) | changes
    record = ConfigRecord({name: value for name, value in entries.items() if value is not None})
    with pytest.raises(PayloadError) as refused:
        Record.from_record(record)
    assert str(refused.value).startswith(message)


def test_fortran_and_strided_arrays_and_bytes_travel_as_they_read() -> None:
    table, scores = np.asfortranarray(np.arange(6.0).reshape(3, 2)), np.arange(6.0)[::2]
    sent = sample(table=table, scores=scores, words=np.frombuffer(b"abc", np.uint8))
    decoded = Record.from_record(sent.to_record())
    np.testing.assert_array_equal(decoded.table, table)
    np.testing.assert_array_equal(decoded.scores, scores)
    assert decoded.words is not None
    assert decoded.words.tobytes() == b"abc"


def test_a_secret_is_not_durable() -> None:
    written = sample(key=np.array([2]))
    assert list(written.arrays()) == ["totals", "scores", "table", "key"]
    assert list(written.durable()) == ["totals", "scores", "table"]
    with pytest.raises(ValueError, match="a secret field must be optional"):
        array(1, secret=True)
