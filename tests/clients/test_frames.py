"""The bytes of a frame, and the error that names a party."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.vertical.transport.frames import HEADER, HEADER_BYTES, Kind, PartyError, pack


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


@given(party=st.none() | st.integers(0, 11), reason=st.text(max_size=300))
def test_the_wire_gives_it_back(party: int | None, reason: str) -> None:
    reason = "".join(filter(str.isprintable, reason))
    error = PartyError.from_bytes(PartyError(party, reason).to_bytes(), 12)
    assert (error.party, error.reason) == (party, reason)


def test_line_breaks_and_escape_sequences_of_a_peer_are_spelt_out() -> None:
    body = PartyError(1, "gone\n\x1b[2J2026 INFO all is well\u2028\x00").to_bytes()
    assert PartyError.from_bytes(body, 2).reason == r"gone\n\x1b[2J2026 INFO all is well\u2028\x00"


@pytest.mark.parametrize("body", [b"", b"\x01\x00\x00", b"\x02\x00\x00\x00no such party", b"\xfe\xff\xff\xff"])
def test_what_is_no_abort_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="an abort"):
        PartyError.from_bytes(body, 2)
