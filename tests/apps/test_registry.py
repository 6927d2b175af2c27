"""The registry: it gathers the rows of all families, and the two halves of a row speak the same records."""

import pkgutil
from pathlib import Path

import pytest

from apps import algorithms
from apps.registry import ALGORITHMS, rows_of
from simulations.stubs import MARK

PROJECT = Path(__file__).resolve().parents[2]
FAMILIES = [module.name for module in pkgutil.iter_modules(algorithms.__path__)]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_both_halves_name_the_same_records(name: str) -> None:
    row = ALGORITHMS[name]
    assert row.strategy.down_type is row.client.down
    assert row.strategy.up_type is row.client.up
    assert row.strategy.phases == row.client.phases


# The rows.


def test_every_row_of_every_family_is_there_in_their_order() -> None:
    rows = [name for family in sorted(FAMILIES) for name in rows_of(f"apps.algorithms.{family}")]
    assert list(ALGORITHMS) == rows
    assert len(rows) >= 23


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_left_to_fill_in(family: str) -> None:
    files = [PROJECT / folder / f"{family}.py" for folder in ("apps/algorithms", "payloads", "clients", "strategies")]
    unfilled = [path for path in files if path.exists() and MARK in path.read_text("utf-8")]
    assert unfilled == [], f"{MARK!r} still stands there; say it in words"
