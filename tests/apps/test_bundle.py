"""The bundle that `flwr build` sends to every site: all modules that the apps import, little else, and reproducible."""

import ast
import io
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

# Flower's own use of a library raises this warning
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")

PROJECT = Path(__file__).resolve().parents[2]
PACKAGES = ("apps", "clients", "methods", "payloads", "privacy", "problems", "strategies", "vertical")


@pytest.fixture(scope="module")
def bundle() -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(build_fab_from_disk(PROJECT)))


@pytest.mark.slow  # in the gate only, since a user's own algorithm may exceed the limit
@pytest.mark.gate
def test_at_most_three_mebibytes_travel_to_every_site() -> None:
    assert len(build_fab_from_disk(PROJECT)) <= 3 * 2**20


def names(node: ast.AST) -> list[str]:
    """Return the modules that a statement may import."""
    if isinstance(node, ast.ImportFrom):
        return [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def imported(waiting: list[Path]) -> set[str]:
    """Return these files of the project, and all project files that they import directly or indirectly."""
    found: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path.is_file() and path.relative_to(PROJECT).as_posix() not in found:
            found.add(path.relative_to(PROJECT).as_posix())
            for name in (name for node in ast.walk(ast.parse(path.read_text("utf-8"))) for name in names(node)):
                place = PROJECT.joinpath(*name.split("."))
                waiting += [place.with_suffix(".py"), place / "__init__.py"]
    return found


def test_the_bundle_has_what_the_apps_import_and_the_licence_and_nothing_else(bundle: zipfile.ZipFile) -> None:
    there = set(bundle.namelist())
    assert imported([PROJECT / "apps" / "server_app.py", PROJECT / "apps" / "client_app.py"]) <= there
    assert {"LICENSE", "pyproject.toml"} <= there
    assert {name.split("/")[0] for name in there if "/" in name} == {*PACKAGES, ".info"}


def test_a_bundle_and_a_module_beside_it_can_be_built_again(bundle: zipfile.ZipFile, tmp_path: Path) -> None:
    bundle.extractall(tmp_path)
    (tmp_path / "mymodels.py").write_text("tiny = None\n")
    again = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(tmp_path)))
    assert {*again.namelist()} == {*bundle.namelist(), "mymodels.py"}
