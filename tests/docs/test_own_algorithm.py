"""Tests of the tutorial on writing an algorithm, followed exactly in a copy of the tree."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.markdown import PROJECT, blocks

PAGE = PROJECT / "docs" / "tutorials" / "your-own-algorithm.md"
SCRIPTS = Path(sys.executable).parent
METHOD, TEST = "methods/fed_avgm.py", "tests/algorithms/test_fed_avgm.py"
REGISTRY, PYPROJECT = "apps/registry.py", "pyproject.toml"
# maximum lines of a whole algorithm, including its row and its imports
MOST_LINES = 50


def page_files() -> dict[str, str]:
    """Return the page's Python blocks that are files, by the path above each block."""
    lines = PAGE.read_text("utf-8").splitlines()
    found = {}
    for block in blocks(PAGE):
        named = re.fullmatch(r"`([a-z_/]+\.py)`:", lines[block.line - 4].strip())
        if block.language == "python" and named:
            found[named[1]] = block.text
    return found


def page_row() -> tuple[str, str]:
    """Return the import and the row that the page adds to the registry: its Python blocks without a path."""
    files = page_files().values()
    added, row = (block.text for block in blocks(PAGE) if block.language == "python" and block.text not in files)
    return added, row


def page_commands() -> list[str]:
    shown = [block.text.replace("\\\n", " ") for block in blocks(PAGE) if block.language == "sh"]
    return [line for text in shown for line in text.splitlines()]


def test_the_page_shows_a_whole_algorithm_in_one_file_and_one_row_of_at_most_fifty_lines() -> None:
    assert sorted(page_files()) == [METHOD, TEST]
    added, row = page_row()
    assert added.startswith("from methods.fed_avgm import ")
    lines = [line for text in (page_files()[METHOD], added, row) for line in text.splitlines() if line.strip()]
    assert len(lines) <= MOST_LINES
    assert [command.split()[0] for command in page_commands()] == ["pytest"] * 3 + ["florilegium"] * 3


class Workplace:
    """A contributor's copy of the tree, under version control."""

    def __init__(self, root: Path) -> None:
        self.root = root
        # a copy without version control, such as the gate's, has no list of its files
        ignored = [line.rstrip("/") for line in (PROJECT / ".gitignore").read_text("utf-8").splitlines() if line]
        shutil.copytree(PROJECT, root, ignore=shutil.ignore_patterns(".git", *ignored), dirs_exist_ok=True)
        self.run("git init -q")
        self.run("git add -A")
        self.run("git -c user.name=a -c user.email=a@example.org commit -q -m 'as it was'")

    def run(self, command: str, fails: bool = False) -> str:
        """Run a shell line with this copy's modules and this interpreter's commands."""
        environment = {**os.environ, "PYTHONPATH": str(self.root), "PATH": f"{SCRIPTS}:{os.environ['PATH']}"}
        done = subprocess.run(command, shell=True, cwd=self.root, env=environment, capture_output=True, text=True)
        assert (done.returncode != 0) == fails, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout + done.stderr

    def changed(self) -> set[str]:
        """Return the files that differ from the last commit, including new files."""
        return {line[3:] for line in self.run("git status --porcelain --untracked-files=all").splitlines()}

    def put(self, name: str, text: str) -> None:
        (self.root / name).write_text(text, "utf-8")

    def insert(self, name: str, text: str, before: str) -> None:
        """Insert a text before another text, which the file must contain exactly once."""
        whole = (self.root / name).read_text("utf-8")
        assert whole.count(before) == 1, f"{name}: {before!r} stands there {whole.count(before)} times"
        self.put(name, whole.replace(before, text + before))

    def check(self) -> None:
        """Run the checks that a change must pass before its tests."""
        for command in ("ruff format --check .", "ruff check .", "mypy", "lint-imports --no-cache"):
            self.run(command)


@pytest.mark.slow
def test_the_tutorial_holds_to_the_letter(tmp_path: Path) -> None:
    place, pages = Workplace(tmp_path), page_files()
    if (PROJECT / ".mypy_cache").exists():  # without the cache the type checker would read PyTorch first
        shutil.copytree(PROJECT / ".mypy_cache", tmp_path / ".mypy_cache")

    # The file, the row and the table are the whole algorithm.
    for name, text in pages.items():
        place.put(name, text)
    added, row = page_row()
    place.insert(REGISTRY, added, "from methods.method import ")
    registry = (tmp_path / REGISTRY).read_text("utf-8")
    assert registry.endswith("),\n}\n")  # the end of the table
    place.put(REGISTRY, registry.removesuffix("}\n") + row + "}\n")
    (table,) = (block.text for block in blocks(PAGE) if block.language == "toml")
    place.put(PYPROJECT, f"{(tmp_path / PYPROJECT).read_text('utf-8')}\n{table}")
    config = tomllib.loads((tmp_path / PYPROJECT).read_text("utf-8"))["tool"]["flwr"]["app"]["config"]
    assert config["fed-avgm"] == {"momentum": 0.9}
    assert place.changed() == {*pages, REGISTRY, PYPROJECT}
    place.check()
    its_test, keys, battery, *runs = page_commands()
    for command in (its_test, keys, battery):
        assert "passed" in place.run(command)
    for command in runs:
        place.run(command)
    momentum, plain = (
        json.loads((tmp_path / "runs" / name / "result.json").read_text("utf-8"))["metrics"]["auc"]
        for name in ("fed-avgm", "fedavg")
    )
    assert momentum > 0.8 > plain + 0.2
    place.run("pytest -q tests/apps/test_registry.py tests/apps/test_bundle.py")
    assert {name for name in place.changed() if not name.startswith("runs/")} == {*pages, REGISTRY, PYPROJECT}

    # A page is written by hand, and the command adds the generated parts.
    page = (tmp_path / "docs/algorithms/fedprox.md").read_text("utf-8")
    for old, new in {"fedprox.proximal-mu": "fed-avgm.momentum", "fedprox": "fed-avgm", "`0.01`": "`0.9`"}.items():
        page = page.replace(old, new)
    place.put("docs/algorithms/fed-avgm.md", re.sub("## Figure.*?(?=## )", "", page, flags=re.DOTALL))
    place.run("python docs/tables.py")
    place.run("pytest -q tests/docs/test_tables.py tests/docs/test_algorithm_pages.py")
    place.check()

    # The algorithm's test detects a wrong update.
    right, wrong = "plan.settings.momentum * state.v + ", "state.v + "
    assert right in pages[METHOD]
    place.put(METHOD, pages[METHOD].replace(right, wrong))
    assert "4 failed, 1 passed" in place.run(its_test, fails=True)
