"""The registry: its rows are whole, and the two halves of a row speak the same records."""

from typing import Any

import pytest

from apps.registry import ALGORITHMS, adapt
from methods.local_sgd import LOCAL_SGD
from problems.objectives.classification import CROSS_ENTROPY


@pytest.mark.parametrize("name", ALGORITHMS)
def test_both_halves_name_the_same_records(name: str) -> None:
    row = ALGORITHMS[name]
    assert row.strategy.down_type is row.client.down
    assert row.strategy.up_type is row.client.up
    assert row.strategy.phases == row.client.phases


def test_no_row_is_lost() -> None:
    assert len(ALGORITHMS) >= 23


def test_a_run_config_table_is_one_settings_model() -> None:
    """Two rows may share a table, and then they share its settings."""
    tables: dict[str, set[type[Any]]] = {}
    for row in ALGORITHMS.values():
        tables.setdefault(row.table, set()).add(row.settings)
    assert {table: len(kinds) for table, kinds in tables.items()} == dict.fromkeys(tables, 1)


def test_a_method_becomes_a_row_with_two_named_classes() -> None:
    row = adapt(LOCAL_SGD, "Plain", "", (CROSS_ENTROPY,), "local SGD", "nothing", unread=("score",))
    assert (row.strategy.__name__, row.client.__name__) == ("Plain", "PlainClient")
    assert row.strategy.unread == ("score",)
    assert row.client.default_loss == row.strategy.default_loss == CROSS_ENTROPY
    assert row.sites is ALGORITHMS["local-sgd"].sites
    assert row.evaluation is ALGORITHMS["local-sgd"].evaluation
