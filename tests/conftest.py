"""Fixtures for all tests."""

import os
import warnings
from collections.abc import Iterator

import hypothesis
import pytest

with warnings.catch_warnings():
    # Flower imports Typer, which uses names that Click has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import typer  # noqa: F401

from tests.battery.engines import Engine, Flower, InProcess, flower_home
from tests.programs import Line

# no deadline, since the time of a Hypothesis example depends on the machine's load
hypothesis.settings.register_profile("any-machine", deadline=None)
hypothesis.settings.load_profile("any-machine")


# On Flower's own engine the gate (.ci/run) tests one strategy of each family; .ci/full tests all strategies.
ONE_OF_EACH_FAMILY = ("fedx2", "local-scgdam", "fedsgda-storm", "composite", "vfb2-svrg")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if item.get_closest_marker("flower") and parameters.get("strategy") in ONE_OF_EACH_FAMILY:
            item.add_marker("gate")


@pytest.fixture(scope="session")
def flower_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    """Yield Flower's simulation behind one SuperLink for the whole test session."""
    with flower_home(tmp_path_factory.mktemp("flower-home")):
        yield Flower()


@pytest.fixture(params=["inprocess", pytest.param("flower", marks=[pytest.mark.flower, pytest.mark.slow])])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Return the engine that runs a federation; a test that requests it runs on every engine."""
    if request.param == "inprocess":
        return InProcess()
    flower: Flower = request.getfixturevalue("flower_engine")
    return flower


@pytest.fixture(autouse=True, scope="session")
def fast_disk() -> Iterator[None]:
    """Do not wait for the disk. A test of durability replaces this, or runs the product in its own process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Line:
    return Line(monkeypatch, capfd)
