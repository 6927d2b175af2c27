"""Tests of the wheel: built, installed beside the present packages, and run in a folder with packages of the same
names."""

import json
import os
import site
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.gate]

PROJECT = Path(__file__).resolve().parents[2]


def output(*command: str | Path, cwd: Path) -> str:
    """Return a command's stdout, in an environment without the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel and the source archive."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=PROJECT, check=True)
    return folder


@pytest.fixture(scope="module")
def scripts(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs' folder of a new environment with the wheel and the packages of this environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (place,) = folder.glob("lib/python*/site-packages")
    # without path files, which would bring in the checkout that is installed here
    (place / "others.pth").write_text("\n".join(site.getsitepackages()))
    (wheel,) = built.glob("*.whl")
    install = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--no-deps", "--no-index"]
    output(*install, "--force-reinstall", wheel, cwd=folder)
    return folder / "bin"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a user's folder, whose packages have the same names as ours."""
    for name in ("apps", "clients", "simulations"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not this one')\n")
    return tmp_path


def test_a_run_and_a_sweep_of_an_installed_wheel(scripts: Path, folder: Path) -> None:
    config = "num-server-rounds=2 local-steps=4"
    output(scripts / "florilegium", "run", "--clients", "8", "--out", "out", "-c", config, cwd=folder)
    result = json.loads((folder / "out" / "result.json").read_text("utf-8"))
    assert (result["rounds"], result["clients"]) == (2, 8)
    assert result["metrics"]["auc"] > 0.9
    asked = ["sweep", "--clients", "2", "--grid", "learning-rate=0.05,0.1", "--out", "trials", "--json"]
    swept = json.loads(output(scripts / "florilegium", *asked, "-c", config, cwd=folder))
    assert [row["status"] for row in swept["trials"]] == ["finished"] * 2
    code = "import florilegium; print(florilegium.__version__, florilegium.FedX2.__module__, florilegium.__file__)"
    version, module, place = output(scripts / "python", "-P", "-c", code, cwd=folder).split()
    assert (version, module) == (result["versions"]["florilegium"], "strategies.fedx")
    assert Path(place).is_relative_to(scripts.parent)


def test_a_reproduction_of_an_installed_wheel(scripts: Path, folder: Path) -> None:
    asked = ["reproduce", "composite-fig1", "--profile", "smoke", "--jobs", "1", "--out", "out", "--json"]
    assert json.loads(output(scripts / "florilegium", *asked, cwd=folder))["failed"] == {}
    assert (folder / "out" / "report.html").exists()


def test_the_source_archive_holds_the_licence_and_what_the_wheel_is_built_of(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "constraints.txt", "florilegium/command.py"} <= names
