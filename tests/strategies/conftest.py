"""Fixtures for the tests of strategies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from simulations.engine import task_identity


@pytest.fixture(autouse=True)
def _identity() -> Iterator[None]:
    with task_identity():
        yield
