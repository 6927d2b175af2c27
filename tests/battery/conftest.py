"""The battery's parameter, the algorithm; and no pictures, which take longer than the runs."""

from __future__ import annotations

import pytest

from apps.registry import ALGORITHMS


@pytest.fixture(params=list(ALGORITHMS))
def strategy(request: pytest.FixtureRequest) -> str:
    """The run-config name of every algorithm of the registry in turn."""
    return str(request.param)


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.curves.draw_curves", lambda *lines, **options: None)
