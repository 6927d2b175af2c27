"""Tests of the bytes of a frame: each frame is accepted once, and errors name the party."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vertical.transport.frames import HEADER, HEADER_BYTES, FrameError, Kind, PartyError, pack
from vertical.transport.links import ReplayGuard


def test_the_header_is_fifteen_bytes_in_the_documented_order() -> None:
    assert HEADER_BYTES == 15
    data = pack(0x01020304, 5, 0x0607, 0x08090A0B, b"xyz")
    assert data == bytes([3, 0, 0, 0, 4, 3, 2, 1, 5, 7, 6, 0x0B, 0x0A, 9, 8]) + b"xyz"


def test_a_body_may_be_an_array() -> None:
    values = np.arange(12.0).reshape(3, 4)
    data = pack(1, Kind.PARTIAL, 0, 0, values.data)
    assert HEADER.unpack_from(data)[0] == 96
    values[:] = 0.0  # the packed frame is a copy
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
    with pytest.raises(ValueError, match="the body of an abort must"):
        PartyError.from_bytes(body, 2)


def accepts(guard: ReplayGuard, kind: int, active: int, update: int) -> bool:
    try:
        guard.accept(kind, active, update)
    except FrameError:
        return False
    return True


@given(
    st.integers(1, 70),
    st.lists(st.tuples(st.integers(1, 2), st.integers(0, 2), st.integers(0, 150)), max_size=200),
)
def test_it_accepts_what_is_new_and_not_too_old(width: int, frames: list[tuple[int, int, int]]) -> None:
    guard = ReplayGuard(width)
    seen: set[tuple[int, int, int]] = set()
    highest: dict[tuple[int, int], int] = {}
    for kind, active, update in frames:
        top = highest.get((kind, active), update)
        fresh = (kind, active, update) not in seen and update > top - width
        assert accepts(guard, kind, active, update) is fresh
        if fresh:
            seen.add((kind, active, update))
            highest[kind, active] = max(top, update)


def test_a_long_run_or_a_jump_costs_no_memory() -> None:
    guard = ReplayGuard(64)
    tracemalloc.start()
    for update in range(10_000):
        guard.accept(1, 0, update)
    guard.accept(1, 0, 2**32 - 1)
    assert tracemalloc.get_traced_memory()[1] < 10_000
    tracemalloc.stop()
    assert not accepts(guard, 1, 0, 0)
    assert [accepts(guard, 1, 0, 2**32 - 2) for _ in range(2)] == [True, False]


def test_one_sender_cannot_open_streams_without_end() -> None:
    guard = ReplayGuard(streams=3)
    for active in range(3):
        guard.accept(1, active, 0)
    with pytest.raises(FrameError, match="more than 3 pairs"):
        guard.accept(1, 3, 0)
    guard.accept(1, 2, 1)
