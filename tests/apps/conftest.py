"""Fixtures for the tests of the apps."""

from __future__ import annotations

import pytest


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Curves take longer to draw than a small run to train."""
    monkeypatch.setattr("apps.curves.draw_curves", lambda *lines, **options: None)
