"""Each frame once, against a model that remembers everything."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.vertical.transport.frames import FrameError
from clients.vertical.transport.links import ReplayGuard


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
