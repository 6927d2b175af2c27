"""Tests that every party derives the same batches: each row once an epoch, in the slices of the active parties."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from problems.randomness import stream
from vertical.problem.schedule import Schedule


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
    assert [np.arange(rows)[chunk].tolist() for chunk in schedule.chunks] == [
        part.tolist() for part in np.array_split(np.arange(rows), active)
    ]
