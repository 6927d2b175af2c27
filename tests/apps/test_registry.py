"""The registry: rows that share a table, and the parts of a method."""

from dataclasses import replace
from typing import Any

from apps.registry import ALGORITHMS, adapt
from methods.local_sgd import LOCAL_SGD
from problems.objectives.classification import CROSS_ENTROPY


def test_a_run_config_table_is_one_settings_model() -> None:
    """If two rows share a table, they share its settings."""
    tables: dict[str, set[type[Any]]] = {}
    for row in ALGORITHMS.values():
        tables.setdefault(row.table, set()).add(row.settings)
    assert {table: len(kinds) for table, kinds in tables.items()} == dict.fromkeys(tables, 1)


def test_a_method_becomes_a_row_with_two_named_classes() -> None:
    row = adapt(replace(LOCAL_SGD, unread=("score",)), "Plain", "local SGD")
    assert (row.strategy.__name__, row.client.__name__) == ("Plain", "PlainClient")
    assert row.traits.unread == ("score",)
    assert row.client.default_loss == row.traits.loss == CROSS_ENTROPY
    assert row.sites is ALGORITHMS["local-sgd"].sites
    assert row.evaluation is ALGORITHMS["local-sgd"].evaluation
