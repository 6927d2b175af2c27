"""The battery's parameter: the algorithm."""

import pytest

from apps.registry import ALGORITHMS


@pytest.fixture(params=list(ALGORITHMS))
def strategy(request: pytest.FixtureRequest) -> str:
    """The run-config name of each algorithm of the registry."""
    return str(request.param)
