"""The registry: the two halves of a row speak the same records."""

from __future__ import annotations

import pytest

from apps.registry import ALGORITHMS


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
