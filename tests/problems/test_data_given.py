"""Tests of the partition "given"."""

from __future__ import annotations

import pytest

from problems.data import DataError, DataSpec, load
from tests.refusals import refuses


def spec(rows: str, seed: int = 0) -> DataSpec:
    return DataSpec("breast-cancer", partition="given", partition_rows=rows, seed=seed)


def test_each_client_holds_what_it_is_given() -> None:
    data = load(spec("100:0.05, 20:0.6,7:1,5:0"), 4)
    held = [(len(data.client(i)), int(data.client(i).labels.sum())) for i in range(4)]
    assert held == [(100, 5), (20, 12), (7, 7), (5, 0)]
    rows = [row.tobytes() for i in range(4) for row in data.client(i).features]
    assert len(set(rows)) == 132  # each row belongs to one client


@pytest.mark.parametrize(
    ("rows", "clients", "reason"),
    [
        ("10:0.5,10:0.5", 3, "number of clients: got 3, allowed: 2, since partition-rows describes 2 clients"),
        ("400:1", 1, "partition-rows: got 400 positives in all, allowed: at most the 170"),
        ("400:0", 1, "partition-rows: got 400 negatives in all, allowed: at most the 286"),
    ],
)
def test_what_cannot_be_given(rows: str, clients: int, reason: str) -> None:
    with refuses(DataError, reason):
        load(spec(rows), clients)
