"""The registry: it gathers the rows of all families, and the two halves of a row speak the same records."""

from __future__ import annotations

import dataclasses
import pkgutil
import sys
import types
from pathlib import Path

import pytest

from apps import algorithms
from apps.registry import ALGORITHMS, gathered, rows_of
from payloads.sgdm import SGDMSettings
from simulations.stubs import MARK

PROJECT = Path(__file__).resolve().parents[2]
FAMILIES = [module.name for module in pkgutil.iter_modules(algorithms.__path__)]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_both_halves_name_the_same_records(name: str) -> None:
    row = ALGORITHMS[name]
    assert row.strategy.down_type is row.client.down
    assert row.strategy.up_type is row.client.up
    assert row.strategy.phases == row.client.phases


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_default_loss_is_one_the_algorithm_allows(name: str) -> None:
    row = ALGORITHMS[name]
    assert row.client.default_loss in row.losses


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


def test_two_rows_of_one_name_are_refused() -> None:
    row = ALGORITHMS["local-sgd"]
    assert gathered({"one": {"a": row}, "two": {"b": row}}) == {"a": row, "b": row}
    with pytest.raises(ValueError, match="strategy 'a' has a row in one and in two; rename one of them"):
        gathered({"one": {"a": row}, "two": {"a": row}})


def test_a_table_of_two_models_is_refused() -> None:
    row = ALGORITHMS["fedprox"]
    other = dataclasses.replace(row, settings=SGDMSettings)
    assert len(gathered({"one": {"a": row}, "two": {"b": row}})) == 2
    with pytest.raises(ValueError, match="table 'fedprox' is FedProxSettings in one and SGDMSettings in two; rename"):
        gathered({"one": {"a": row}, "two": {"b": other}})
    with pytest.raises(ValueError, match="table 'fedprox' is FedProxSettings in one and SGDMSettings in one; rename"):
        gathered({"one": {"a": row, "b": other}})


@pytest.mark.parametrize("rows", [None, [], {"a": 1}])
def test_a_module_without_rows_is_refused(rows: object, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("a_family")
    if rows is not None:
        monkeypatch.setattr(module, "ROWS", rows, raising=False)
    monkeypatch.setitem(sys.modules, "a_family", module)
    with pytest.raises(ValueError, match="a_family: ROWS must be a dict from a run-config name to an Algorithm, got"):
        rows_of("a_family")
