"""The bytes of a frame."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clients.vertical.transport.frames import HEADER, HEADER_BYTES, Kind, pack


def test_the_header_is_fifteen_bytes_in_the_documented_order() -> None:
    assert HEADER_BYTES == 15
    data = pack(0x01020304, 5, 0x0607, 0x08090A0B, b"xyz")
    assert data == bytes([3, 0, 0, 0, 4, 3, 2, 1, 5, 7, 6, 0x0B, 0x0A, 9, 8]) + b"xyz"


def test_a_body_may_be_an_array() -> None:
    values = np.arange(12.0).reshape(3, 4)
    data = pack(1, Kind.PARTIAL, 0, 0, values.data)
    assert HEADER.unpack_from(data)[0] == 96
    values[:] = 0.0  # what was packed is a copy
    np.testing.assert_array_equal(np.frombuffer(data[HEADER_BYTES:]), np.arange(12.0))


@given(st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 65535), st.integers(0, 2**32 - 1), st.binary())
def test_it_can_be_read_again(serial: int, kind: int, active: int, update: int, body: bytes) -> None:
    data = pack(serial, kind, active, update, body)
    assert HEADER.unpack_from(data) == (len(body), serial, kind, active, update)
    assert data[HEADER_BYTES:] == body
