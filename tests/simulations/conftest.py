"""Fixtures for the tests of experiments."""

import pytest

from tests.simulations.fabricated import Runs, not_drawn


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """No run of an experiment is made, and nothing is drawn, which takes half a second."""
    stand_in = Runs()
    monkeypatch.setattr("simulations.experiments.reproduce.run_all", stand_in)
    monkeypatch.setattr("simulations.experiments.reproduce.draw", not_drawn)
    return stand_in
