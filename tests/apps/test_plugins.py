"""Strategies and data sets of other packages, by path and by entry point."""

import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.config import ConfigError, Scalar, parse_run_config
from apps.server_app import RunFailedError
from problems.data import DataError, DataSpec, load
from simulations.results.records import read_run
from simulations.scoring.card import write_card
from simulations.scoring.model import load as load_model
from tests.battery.engines import Engine, Flower, InProcess, flower_home
from tests.programs import Line
from tests.refusals import refuses

PACKAGE = '''
from dataclasses import replace
from pydantic import Field
from apps.registry import adapt
from methods.local_sgd import LOCAL_SGD
from methods.method import ServerHalf
from payloads.settings import Settings

class HalfwaySettings(Settings):
    """How far the server goes."""
    share: float = Field(0.5, gt=0, le=1, description="share of the way, in (0, 1]")
    kind: str = Field("plain", description="a word")

def update(x, state, replies, plan):
    """Go a share of the way to the mean."""
    mean = replies.mean_point()
    return (x + plan.settings.share * (mean - x)).astype(x.dtype), state

METHOD = replace(LOCAL_SGD, server=ServerHalf(update=update), settings=HalfwaySettings, table="halfway")
ROW = adapt(METHOD, "Halfway", "half of the way")
TAKEN = adapt(replace(METHOD, table="fedx"), "Halfway", "half of the way")
PRIVATE = adapt(replace(METHOD, table="privacy"), "Halfway", "half of the way")
BARE = adapt(LOCAL_SGD, "Bare", "half of the way")
'''
LOADERS = """
import numpy as np

def blobs(seed):
    labels = np.arange(90) % 3 // 2
    return np.random.default_rng(seed).normal(size=(90, 4)) + labels[:, None], labels
"""
ENTRY_POINTS = """
[florilegium.strategies]
halfway = halfway_package:ROW
broken = halfway_package:NONE
fedx2 = halfway_package:ROW
[florilegium.datasets]
blobs = halfway_package.data:blobs
"""
SMALL: dict[str, Scalar] = {"model": "linear", "num-server-rounds": 2, "local-steps": 9, "pictures": False}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of an installed package."""
    folder = tmp_path / "installed"
    (folder / "halfway_package").mkdir(parents=True)
    (folder / "halfway_package" / "__init__.py").write_text(PACKAGE)
    (folder / "halfway_package" / "data.py").write_text(LOADERS)
    register(folder, "halfway-package", ENTRY_POINTS)
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in ("halfway_package", "halfway_package.data"):
        sys.modules.pop(name, None)


def register(folder: Path, name: str, points: str) -> None:
    """Write the metadata that an installation adds to a package."""
    place = folder / f"{name.replace('-', '_')}-1.2.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (place / "entry_points.txt").write_text(points)


def check_runs(engine: Engine, tmp_path: Path) -> None:
    """A strategy gives the same run by name and by path, and with share 1 the run of local SGD."""
    blobs: dict[str, Scalar] = {**SMALL, "dataset": "blobs"}
    named = engine.run(tmp_path / "named", {**blobs, "strategy": "halfway", "strategy-settings": "share=1"}, 3)
    path: dict[str, Scalar] = {"strategy": "halfway_package:ROW", "dataset": "halfway_package.data:blobs"}
    by_path = InProcess().run(tmp_path / "path", {**SMALL, **path, "halfway.share": 1.0}, 3)
    plain = InProcess().run(tmp_path / "plain", {**blobs, "strategy": "local-sgd"}, 3)
    half = InProcess().run(tmp_path / "half", {**blobs, "strategy": "halfway"}, 3)
    losses = [[line["loss"] for line in run.lines] for run in (named, by_path, plain, half)]
    assert losses[0] == losses[1]
    assert losses[0] == pytest.approx(losses[2], rel=1e-6)
    assert losses[3][-1] > losses[0][-1] + 1e-3
    written = tomllib.loads((tmp_path / "named" / "config.toml").read_text("utf-8"))
    assert (written["halfway"], written["strategy-settings"]) == ({"share": 1.0, "kind": "plain"}, "")


def test_a_package_s_strategy_and_data_run_by_name_and_by_path(package: Path, tmp_path: Path) -> None:
    check_runs(InProcess(), tmp_path)
    # its own default is not reported as a difference, and a resumed run has the same settings
    departures = read_run(tmp_path / "half").departures
    assert "model" in departures
    assert "halfway.share" not in departures
    assert "Strategy:** `halfway`, " in write_card(load_model(tmp_path / "half"))
    more = {**SMALL, "dataset": "blobs", "strategy": "halfway", "num-server-rounds": 3, "resume": True}
    with refuses(RunFailedError, r"halfway.share: got 0.2, allowed: 0.5"):
        InProcess().run(tmp_path / "half", {**more, "strategy-settings": "share=0.2"}, 3)


@pytest.mark.slow
@pytest.mark.flower
def test_flower_s_own_engine_finds_the_package(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{package}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with flower_home(tmp_path / "flower-home"):
        check_runs(Flower(), tmp_path)


def test_list_says_where_they_come_from(package: Path, command: Line) -> None:
    lines = command("list")[1].splitlines()
    (mine,), (broken,), (data,) = (
        [line for line in lines if name in line.split()[:1]] for name in ("halfway", "broken", "blobs")
    )
    assert mine.split(maxsplit=1)[1] == "half of the way [halfway-package 1.2]"
    assert "cannot be used: 'halfway_package:NONE': module 'halfway_package' has no attribute" in broken
    assert data.split(maxsplit=1)[1] == "halfway_package.data:blobs [halfway-package 1.2]"
    assert len([line for line in lines if line.split()[:1] == ["fedx2"]]) == 1  # the project keeps its own name


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"strategy": "halway"},
            "strategy: got 'halway', allowed: coda, .*, halfway, package.module:ROW; did you mean 'halfway'",
        ),
        (
            {"strategy": "fedavg", "seeed": 1},
            "strategy: got 'fedavg', .* 'local-sgd'.*; seeed: got an unknown",
        ),
        ({"strategy": "no_package:ROW"}, "cannot import 'no_package' .*, allowed: 'package.module:ROW' that names"),
        ({"strategy": "broken"}, "strategy: got 'halfway_package:NONE': module 'halfway_package' has no attribute"),
        ({"strategy": "halfway_package:update"}, "'halfway_package:update', a function, allowed: 'package.module"),
        ({"strategy": "halfway_package:TAKEN"}, "'fedx' belongs to another strategy, allowed: an unused table name"),
        ({"strategy": "halfway_package:PRIVATE"}, "whose table 'privacy' belongs to another strategy"),
        ({"strategy": "halfway", "halfway.share": 2.0}, r"halfway.share: got 2.0, allowed: a number in"),
        ({"strategy": "halfway", "strategy-settings": "share=2"}, r"halfway.share: got 2, allowed: a number in"),
        ({"strategy": "halfway", "strategy-settings": "shar=2"}, r"halfway.shar: got an unknown .* 'halfway.share'"),
        (
            {"strategy": "halfway", "strategy-settings": "share=1} # kind='plain'"},
            r"strategy-settings: got .*key=value",
        ),
        ({"strategy": "halfway", "strategy-settings": "share"}, r"strategy-settings: got 'share' \(.*key=value pairs"),
        (
            {"strategy": "halfway", "strategy-settings": "share=1", "halfway.share": 1.0},
            "got 'share=1', and also halfway.share, allowed: each key once",
        ),
        ({"strategy-settings": "gamma=1"}, "allowed: '', since strategy 'fedx2' has its keys in table 'fedx'"),
        ({"strategy": "halfway_package:BARE", "strategy-settings": "a=1"}, "has no keys"),
        ({"halfway.share": 1.0}, "halfway.share: got an unknown run-config key"),
        ({"dataset": "blob"}, "dataset: got 'blob', allowed: .*, blobs, .*; did you mean 'blobs'"),
    ],
)
def test_what_cannot_be_is_one_error(package: Path, config: dict[str, Scalar], message: str) -> None:
    with refuses(ConfigError, message):
        parse_run_config(config)


def test_a_name_of_two_packages_is_refused(package: Path) -> None:
    register(package, "another", ENTRY_POINTS)
    from problems.importing import _plugins

    _plugins.cache_clear()
    both = re.escape("a name of another 1.2 and of halfway-package 1.2")
    with refuses(ConfigError, f"strategy: got 'halfway', {both}"):
        parse_run_config({"strategy": "halfway"})
    with refuses(DataError, f"dataset: got 'blobs', {both}, allowed: a name that a single package"):
        load(DataSpec("blobs"), 2)
