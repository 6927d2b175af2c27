"""Fixtures for the tests of strategies."""

from collections.abc import Iterator

import pytest

from simulations.engines.grid import task_identity


@pytest.fixture(autouse=True)
def _identity() -> Iterator[None]:
    with task_identity():
        yield
