"""Fixtures for the tests of experiments."""

import pytest

from tests.simulations.fabricated import Runs, not_drawn


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Replace an experiment's runs and figures: no run is made, and drawing, which takes half a second, is left out."""
    stand_in = Runs()
    monkeypatch.setattr("simulations.experiments.reproduce.run_all", stand_in)
    monkeypatch.setattr("simulations.experiments.reproduce.draw", not_drawn)
    return stand_in
