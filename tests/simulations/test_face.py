"""Tests of `import florilegium` and the command: public names, and a run in any folder and without any extra."""

import json
import logging
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

import florilegium
from apps.config import parse_run_config
from apps.registry import ALGORITHMS
from apps.run_directory.artifacts import RunDirectory
from problems import errors
from problems.errors import MissingExtraError
from simulations.engines.flower import run_with_flower
from simulations.experiments.expansion import expand
from simulations.experiments.experiment import find_experiment
from simulations.experiments.reproduce import Reproduction
from simulations.results.compare import Comparison
from simulations.results.report import write_report
from simulations.sweeps.plan import Sweep
from simulations.sweeps.sweep import run_sweep
from tests.programs import PROJECT, ran

SMALL = {"num-server-rounds": 1, "local-steps": 2, "checkpoint-every": 0, "fedx": {"gamma": 0.5}}
MODEL = """
import torch

def tiny(shape):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(shape[0], 1))
"""


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Hide a package as if it were not installed."""

    def uninstall(package: str) -> None:
        monkeypatch.setattr(errors, "find_spec", lambda name: None if name == package else SimpleNamespace())

    return uninstall


def test_every_public_name_is_found_and_every_algorithms_types_are_public() -> None:
    for name in florilegium.__all__:
        assert getattr(florilegium, name) is not None
    for row in ALGORITHMS.values():
        types = [row.strategy, row.client, row.settings, row.strategy.down_type, row.strategy.up_type]
        types += [row.strategy.state_type, row.client.memory]
        for one in types:
            assert one is None or getattr(florilegium, one.__name__) is one
    with pytest.raises(AttributeError, match="no attribute 'FedX3'"):
        florilegium.__getattr__("FedX3")


def test_importing_the_face_imports_nothing_of_the_project_or_its_libraries() -> None:
    imported = ran("-c", "import sys, florilegium; print(*{name.partition('.')[0] for name in sys.modules})").split()
    assert not {"apps", "simulations", "strategies", "flwr", "torch", "numpy"} & set(imported)


START = """
import contextlib, os, sys
from florilegium.command import main

for words in (["--version"], ["--help"], ["run", "--help"], ["list"], ["list", "keys", "--json"], None):
    if words is None:
        os.environ.update(_FLORILEGIUM_COMPLETE="complete_bash", COMP_WORDS="florilegium centr", COMP_CWORD="1")
    sys.argv = ["florilegium", *(words or [])]
    with contextlib.suppress(SystemExit):
        main()
print("loaded:", *{name.partition(".")[0] for name in sys.modules})
"""


def test_commands_that_compute_nothing_load_no_heavy_library() -> None:
    *lines, last = ran("-c", START).splitlines()
    assert lines[0] == f"florilegium {florilegium.__version__}"
    assert {"strategies:", "run-config keys:", "centralized"} <= set(lines)
    heavy = "torch numpy scipy pandas sklearn numba ray flwr pydantic jaxtyping strategies clients methods vertical"
    assert set(heavy.split()) & set(last.split()) == set()


@pytest.mark.slow
def test_a_site_that_is_no_party_does_not_wait_for_numba() -> None:
    assert ran("-c", "import sys, apps.client_app; print('numba' in sys.modules)").split() == ["False"]


def test_the_version_is_that_of_the_code_that_runs() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    assert florilegium.__version__ == project["version"]


def test_run_gives_what_the_run_directory_holds(without: Callable[[str], None], tmp_path: Path) -> None:
    without("matplotlib")  # a picture takes longer than the run
    record = florilegium.run(SMALL, tmp_path / "run", node_configs=[{}, {}], quiet=True)
    result = json.loads((tmp_path / "run" / "result.json").read_text("utf-8"))
    assert record.metrics == result["metrics"]
    assert record.path == tmp_path / "run"
    assert (result["clients"], result["config"]["fedx"]["gamma"]) == (2, 0.5)
    with pytest.raises(florilegium.RunFailedError, match="already contains a run"):
        florilegium.run(SMALL, tmp_path / "run", quiet=True)


def test_the_command_works_where_packages_have_its_names_and_finds_a_users_module(tmp_path: Path) -> None:
    for name in ("apps", "clients", "payloads", "simulations"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not this one')\n")
    (tmp_path / "mine.py").write_text(MODEL)
    config = 'model="mine:tiny" num-server-rounds=1 local-steps=2 checkpoint-every=0'
    command = ("-m", "florilegium", "run", "--clients", "2", "--out", "out", "--json", "-c", config)
    assert json.loads(ran(*command, cwd=tmp_path))["config"]["model"] == "mine:tiny"


def sweep(folder: Path) -> None:
    run_sweep(Sweep(2, {}, {"learning-rate": [0.1, 0.2]}, {}, 1, 0, 1, "auc", "max", 0, []), folder / "sweep")


def reproduce(folder: Path) -> None:
    with Reproduction(expand(find_experiment("fedx-fig1"), "smoke"), folder / "out").open():
        raise AssertionError


@pytest.mark.parametrize(
    ("package", "extra", "ask"),
    [
        ("ray", "sweep", sweep),
        ("ray", "simulation", lambda folder: run_with_flower(2, {})),
        ("matplotlib", "reports", reproduce),
        ("matplotlib", "reports", lambda folder: Comparison([]).save(folder / "out", "auc")),
        ("jinja2", "reports", lambda folder: write_report([folder])),
        ("flwr_datasets", "simulation", lambda folder: dirichlet()),
    ],
)
def test_a_missing_extra_is_one_error_that_names_it_before_anything_is_written(
    package: str, extra: str, ask: Callable[[Path], object], without: Callable[[str], None], tmp_path: Path
) -> None:
    without(package)
    with pytest.raises(MissingExtraError) as caught:
        ask(tmp_path)
    assert package in str(caught.value)
    assert f'pip install "florilegium[{extra}]"' in str(caught.value)
    assert not list(tmp_path.iterdir())


def dirichlet() -> None:
    federated = import_module("apps.sites.resources").federated_data
    federated(parse_run_config({"partition": "dirichlet", "seed": 70_001}).data, 2)


@pytest.mark.parametrize(("package", "left_out"), [("matplotlib", "curves.png"), ("tensorboard", "events")])
def test_a_run_without_pictures_or_events_ends_well_and_says_which_extra_has_them(
    package: str,
    left_out: str,
    without: Callable[[str], None],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without(package)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    directory = RunDirectory.open(parse_run_config({"output-dir": str(tmp_path), "run-name": "run"}))
    directory.append({"round": 1, "auc": 0.5})
    directory.finish({"strategy": "fedx2", "dataset": "digits"})
    assert {path.name for path in directory.path.iterdir()} >= {"result.json", "metrics.jsonl"}
    assert not (directory.path / left_out).exists()
    (said,) = [text for text in caplog.messages if "left out" in text]
    assert package in said
    assert 'pip install "florilegium[reports]"' in said
