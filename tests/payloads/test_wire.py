"""Tests of the layout of messages: models there and back, rejections, and the count of bytes."""

import io
import pickle
import zipfile
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from methods.pairwise import Momentum
from payloads.record import PayloadError
from payloads.wire import (
    check_model,
    content,
    count_bytes,
    digest,
    model_arrays,
    model_record,
    ready_to_send,
)

vectors = st.sampled_from(["float32", "float64"]).flatmap(lambda d: arrays_of.arrays(d, st.integers(0, 20)))


@given(st.lists(vectors, min_size=1, max_size=2))
def test_a_model_comes_back(arrays: list[np.ndarray]) -> None:
    record = model_record(arrays)
    assert list(record) == ["parameters", "buffers"][: len(arrays)]
    back = model_arrays(record)
    assert [(a.dtype, a.tobytes()) for a in back] == [(a.dtype, a.tobytes()) for a in arrays]


@given(vectors)
def test_an_array_that_is_ready_to_send_is_not_copied_again(value: np.ndarray) -> None:
    copy = ready_to_send(value)
    assert (copy.dtype, copy.shape, copy.tobytes()) == (value.dtype, value.shape, value.tobytes())
    assert not np.shares_memory(copy, value)
    assert not copy.flags.writeable
    sent, usual = (model_record([array])["parameters"] for array in (copy, value))
    assert (sent.data, sent.dtype, sent.shape, sent.stype) == (usual.data, usual.dtype, usual.shape, usual.stype)
    assert model_record([copy])["parameters"].data is sent.data


def test_a_part_of_an_array_that_is_ready_to_send_is_sent_as_what_it_is() -> None:
    """Each part has bytes underneath, but they are not the part's own bytes."""
    whole = ready_to_send(np.arange(100.0))
    data = model_record([whole])["parameters"].data
    for part in (whole[:50], whole[::-1], np.frombuffer(data)[:100], np.frombuffer(bytes(800)), np.frombuffer(data)):
        (sent,) = model_arrays(model_record([part]))
        assert sent.tobytes() == part.tobytes()


@pytest.mark.parametrize("names", [[], ["buffers"], ["buffers", "parameters"], ["parameters", "x"]])
def test_a_record_of_other_names_is_no_model(names: list[str]) -> None:
    with pytest.raises(PayloadError, match="model: got arrays"):
        model_arrays(ArrayRecord({name: Array(np.ones(2)) for name in names}))


@pytest.mark.parametrize("value", [np.ones((2, 2)), np.ones(2, "int64"), np.ones(2, "float16"), np.float64(1.0)])
def test_a_model_is_flat_and_float(value: Any) -> None:
    with pytest.raises(PayloadError, match="expected a flat float vector"):
        model_arrays(ArrayRecord({"parameters": Array(np.asarray(value))}))


def npy(header: str) -> bytes:
    """Return an .npy file of version 1.0 with the given header."""
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def zipped(name: str, data: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, data)
    return buffer.getvalue()


SOUND = Array(np.ones(4, "float32")).data
DAMAGED = {
    "empty": b"",
    "cut": SOUND[:-1],
    "noise": bytes(range(64)),
    "pickle": pickle.dumps(np.ones(2)),
    "object array": npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}") + pickle.dumps([1]),
    "npz": zipped("x.npy", SOUND),
    "header that computes": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (10**3,)}"),
    "huge shape": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000,)}"),
    "overflowing shape": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1" + "0" * 30 + ",)}"),
    "negative shape": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}") + bytes(64),
    "header that is no dict": npy("[1, 2"),
    "unknown type": npy("{'descr': 'zz', 'fortran_order': False, 'shape': (1,)}"),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_array_is_a_payload_error(data: bytes) -> None:
    for kind, blob, told in (("numpy.ndarray", data, "model: "), ("torch.tensor", SOUND, "cannot be read")):
        with pytest.raises(PayloadError, match=told):
            model_arrays(ArrayRecord({"parameters": Array("float32", (4,), kind, blob)}))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(SOUND) - 1), st.binary(min_size=1, max_size=4))
def test_a_changed_byte_is_a_model_or_a_payload_error(place: int, patch: bytes) -> None:
    data = SOUND[:place] + patch + SOUND[place + len(patch) :]
    try:
        (parameters,) = model_arrays(ArrayRecord({"parameters": Array("float32", (4,), "numpy.ndarray", data)}))
    except PayloadError:
        return
    assert parameters.ndim == 1


LIKE = [np.zeros(3, "float32"), np.zeros(2, "float32")]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (LIKE[:1], "model: got 1 arrays, expected 2"),
        ([LIKE[0], np.zeros(3, "float32")], "model: 'buffers' is float32(3,), expected float32(2,)"),
        ([np.zeros(3), LIKE[1]], "model: 'parameters' is float64(3,), expected float32(3,)"),
        ([np.array([0, np.nan, -np.inf], "float32"), LIKE[1]], "model: 2 of 3 values of 'parameters' are not finite"),
    ],
)
def test_check_model_names_expected_and_got(arrays: list[np.ndarray], message: str) -> None:
    check_model(LIKE, LIKE)
    with pytest.raises(PayloadError) as refused:
        check_model(arrays, LIKE)
    assert str(refused.value) == message


# Content.


@pytest.mark.parametrize("extras", [False, True])
def test_count_bytes_is_the_values(extras: bool) -> None:
    records = content(
        arrays=model_record([np.ones(100, "float32")]),
        config=ConfigRecord({"server-round": 3, "a": "text"}),
        payload=Momentum(momentum=np.ones(100)).to_record() if extras else None,
        metrics={"num-examples": 7} if extras else None,
    )
    assert count_bytes(records) == (400 + 800 if extras else 400)  # 100 float32, and 100 float64


@given(st.binary(min_size=1, max_size=40))
def test_bytes_that_are_no_array_are_counted_without_failing(blob: bytes) -> None:
    array = Array(dtype="float32", shape=(1,), stype="numpy.ndarray", data=blob)
    records = content(arrays=ArrayRecord({"parameters": array}), payload=ConfigRecord({"a": blob, "b": 1}))
    assert 0 <= count_bytes(records) <= 2 * len(blob)


@pytest.mark.parametrize(
    "other",
    [
        {"x": ConfigRecord({"k 1 1y k": b"2"})},  # a name that contains the first value and the second name
        {"x": ConfigRecord({"k": b"1"}), "y": ConfigRecord({"k": "2"})},
        {"x": ConfigRecord({"k": b"1"}), "y": ConfigRecord({"k": b"2"}), "z": ConfigRecord()},
        {"x": ConfigRecord({"k": b"1"}), "y": ConfigRecord({"k": b"2"}), "z": MetricRecord()},
        {"x": ConfigRecord({"k1": b""}), "y": ConfigRecord({"k": b"2"})},
    ],
)
def test_different_messages_have_different_hashes(other: dict[str, Any]) -> None:
    content = {"x": ConfigRecord({"k": b"1"}), "y": ConfigRecord({"k": b"2"})}
    same = {name: ConfigRecord(dict(record)) for name, record in content.items()}
    assert digest(RecordDict(content), "train") == digest(RecordDict(same), "train")
    assert digest(RecordDict(content), "train") != digest(RecordDict(other), "train")
    assert digest(RecordDict(content), "train") != digest(RecordDict(content), "evaluate")
