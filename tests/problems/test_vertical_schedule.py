"""Every party derives the same batches: each row once an epoch, in the slices of the active parties."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from problems.randomness import stream
from problems.vertical import Schedule


@given(
    rows=st.integers(1, 60),
    active=st.integers(1, 6),
    batch_size=st.integers(0, 25),
    seed=st.integers(0, 9),
    epoch=st.integers(0, 9),
)
def test_the_plain_construction(rows: int, active: int, batch_size: int, seed: int, epoch: int) -> None:
    active = min(active, rows)
    schedule = Schedule(rows, active, batch_size, seed)
    order = stream(seed, "vertical batches", epoch).permutation(rows)
    slices = np.array_split(order, active)
    for place in range(active):
        size = batch_size or len(slices[place])
        expected = [slices[place][first : first + size] for first in range(0, len(slices[place]), size)]
        got = schedule.batches(epoch, place)
        assert [rows.tolist() for rows in got] == [rows.tolist() for rows in expected]
        assert schedule.count(place) == len(expected)
        assert all(rows.dtype == np.int64 and not rows.flags.writeable for rows in got)
    assert [np.arange(rows)[chunk].tolist() for chunk in schedule.chunks()] == [
        part.tolist() for part in np.array_split(np.arange(rows), active)
    ]


def test_the_last_two_epochs_are_kept() -> None:
    schedule = Schedule(40, 2, 7, 0)
    zero, one = schedule.batches(0, 1), schedule.batches(1, 0)
    assert schedule.batches(0, 1)[0] is zero[0]
    assert schedule.batches(1, 0)[0] is one[0]
    schedule.batches(2, 0)
    assert schedule.batches(1, 0)[0] is one[0]
    again = schedule.batches(0, 1)
    assert again[0] is not zero[0]
    assert again[0].tolist() == zero[0].tolist()
    again.clear()  # a list that is changed changes no schedule
    assert len(schedule.batches(0, 1)) == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Schedule(0, 1, 1, 0), "rows must be 1 or more, got 0"),
        (lambda: Schedule(3, 0, 1, 0), "active parties must be 1 to 3, the number of rows, got 0"),
        (lambda: Schedule(3, 4, 1, 0), "active parties must be 1 to 3, the number of rows, got 4"),
        (lambda: Schedule(3, 1, -1, 0), "batch_size must be 0 .* or more, got -1"),
        (lambda: Schedule(3, 1, 1, -1), "seed must be 0 or more, got -1"),
        (lambda: Schedule(3, 2, 1, 0).batches(0, 2), "place must be 0 to 1, of 2 active parties, got 2"),
        (lambda: Schedule(3, 2, 1, 0).count(-1), "place must be 0 to 1, of 2 active parties, got -1"),
        (lambda: Schedule(3, 2, 1, 0).batches(-1, 0), "epoch must be 0 or more, got -1"),
    ],
)
def test_bad_arguments_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
