"""`new-algorithm`: what it writes, what it refuses, and the tutorial followed to the letter."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from apps.config import ConfigError
from simulations.enrolment import write
from simulations.new_algorithm import LONGEST, describe
from simulations.stubs import MARK, files
from tests.apps.test_command_line import Line
from tests.docs.markdown import PROJECT, blocks, codes, rows, section

PAGE = PROJECT / "docs" / "tutorials" / "your-own-algorithm.md"
SCRIPTS = Path(sys.executable).parent
FLOORS = ("payloads", "clients", "strategies", "apps/algorithms")
PAGES = ("docs/configuration.md", "docs/privacy.md", "docs/disclosure.md")
NESTEROV: dict[str, Any] = {"settings": ["momentum=0.9", "nesterov=false"], "state": ["velocity"], "prefix": "FedAvgM"}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bare": ("plain", {}),
    "tutorial": ("fed-avgm", NESTEROV),
    "settings": ("tuned", {"settings": ["lambda=1.5", "count=3", 'mode="auto"', "step-size=1e-05", 'empty=""']}),
    "records": ("talking", {"down": ["momentum"], "up": ["momentum", "gradient"], "memory": ["control"]}),
    "squared": ("least-squares", {"losses": ["squared-error"], "down": ["centre"]}),
    "both-losses": ("two", {"losses": ["squared-error", "cross-entropy"], "state": ["mean", "spread"]}),
    "everything": (
        "a" * LONGEST,
        {
            "settings": ["x" * LONGEST + "=1", "y=2.0"],
            **{part: ["a" * LONGEST, "b"] for part in ("down", "up", "state", "memory")},
            "losses": ["cross-entropy", "squared-error"],
        },
    ),
    "in-between": ("zebra", {"family": "recovery", "prefix": "SCORE", "settings": ["a=1"], "up": ["array_of_it"]}),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files of a checkout that the generator reads or writes beside, or that its stubs import."""
    root = tmp_path / "checkout"
    for folder in (*FLOORS, "problems/objectives", "problems/models"):
        shutil.copytree(PROJECT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "tests" / "algorithms").mkdir(parents=True)
    (root / "docs").mkdir()
    for name in ("pyproject.toml", "tests/algorithms/small_run.py", *PAGES):
        shutil.copy(PROJECT / name, root / name)
    return root


def contents(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text("utf-8") for path in root.rglob("*") if path.is_file()}


# What it writes.


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_stubs_are_formatted_and_linted_and_their_table_is_in_the_run_config(variant: str, tree: Path) -> None:
    name, options = VARIANTS[variant]
    one, before = describe(name, **options), (tree / "pyproject.toml").read_text("utf-8")
    new, _ = write(one, tree)
    for command in (["format", "--check", "--diff"], ["check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--no-cache", *map(str, new)]
        done = subprocess.run(ruff, cwd=tree, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    after = (tree / "pyproject.toml").read_text("utf-8")
    table = {setting.key: setting.default for setting in one.settings}
    if not table:
        assert after == before
        return
    config = tomllib.loads(after)["tool"]["flwr"]["app"]["config"]
    assert config == {**tomllib.loads(before)["tool"]["flwr"]["app"]["config"], one.table: table}
    assert {key: type(value) for key, value in config[one.table].items()} == {k: type(v) for k, v in table.items()}
    assert len(after.splitlines()) == len(before.splitlines()) + 2 + len(table)


# What it refuses.

REFUSED: dict[str, tuple[Mapping[str, Any], Sequence[str]]] = {
    "capitals": ({"name": "FedAvgM"}, ["NAME: got 'FedAvgM'", "kebab-case", "fed-avgm"]),
    "long": ({"name": "a" * (LONGEST + 1)}, ["NAME: got", f"at most {LONGEST} characters"]),
    "keyword": ({"name": "lambda"}, ["NAME: got 'lambda'", "Python module", "--family"]),
    "taken": ({"name": "fedprox"}, ["NAME: got 'fedprox'", "there is a strategy of that name", "list strategies"]),
    "module": ({"name": "base"}, ["clients/base.py is there already", "--family"]),
    "package": ({"name": "vertical"}, ["clients/vertical is there already"]),
    "table": ({"name": "x", "family": "synthetic", "settings": ["a=1"]}, ["run-config table 'synthetic'", "--family"]),
    "class": ({"name": "reply"}, ["class Reply is there already", "--class-name"]),
    "class-name": ({"name": "x", "prefix": "fedAvgM"}, ["--class-name: got 'fedAvgM'", "FedAvgM"]),
    "loss": ({"name": "x", "losses": ["psm"]}, ["--loss: got 'psm'", "cross-entropy, squared-error", "pairwise"]),
    "no-default": ({"name": "x", "settings": ["momentum"]}, ["--setting: got 'momentum'", "key=default"]),
    "key": ({"name": "x", "settings": ["Momentum=1"]}, ["--setting: got 'Momentum=1'", "kebab-case"]),
    "bare-word": ({"name": "x", "settings": ["mode=auto"]}, ["--setting mode: got 'auto'", "double quotes"]),
    "list": ({"name": "x", "settings": ["a=[1]"]}, ["--setting a: got '[1]'", "a number, true, false"]),
    "two-values": ({"name": "x", "settings": ["a=1\nb=2"]}, ["--setting a: got '1\\nb=2'"]),
    "bar": ({"name": "x", "settings": ['a="x|y"']}, ["--setting a: got", "without quotes, | or `"]),
    "reserved": (
        {"name": "x", "settings": ["copy=1"]},
        ["--setting: got copy, but every settings model has something", "allowed: any other"],
    ),
    "field": ({"name": "x", "up": ["my-field"]}, ["--up: got 'my-field'", "Python name"]),
    "field-of-all": ({"name": "x", "state": ["nbytes"]}, ["--state: got 'nbytes'", "every payload has"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_says_what_is_allowed_and_writes_nothing(case: str, tree: Path) -> None:
    options, parts = REFUSED[case]
    before = contents(tree)
    with pytest.raises(ConfigError) as refused:
        write(describe(**options), tree)
    assert [part for part in parts if part not in str(refused.value)] == []
    assert contents(tree) == before


def test_a_second_time_it_overwrites_nothing(tree: Path) -> None:
    write(describe("fed-avgm", **NESTEROV), tree)
    before = contents(tree)
    with pytest.raises(ConfigError, match="NAME: got 'fed-avgm', but there is a strategy of that name"):
        write(describe("fed-avgm", **NESTEROV), tree)
    with pytest.raises(ConfigError, match=r"payloads/fed_avgm.py is there already"):
        write(describe("other", family="fed_avgm"), tree)
    assert contents(tree) == before
    (tree / "tests" / "algorithms" / "test_mine.py").write_text("", "utf-8")
    with pytest.raises(ConfigError, match=r"tests/algorithms/test_mine.py is there already"):
        write(describe("mine"), tree)


@pytest.mark.parametrize(
    ("name", "change", "part"),
    [
        ("docs/configuration.md", ("| `strategy` |", "| strategy |"), "no row `strategy`"),
        ("docs/configuration.md", ("## Table ", "## The table "), "no section 'Table ...'"),
        ("docs/privacy.md", ("## Which with which", "## Which"), "no table under 'Which with which'"),
        ("pyproject.toml", ("[tool.flwr.app.config", "[tool.other.config"), "no table [tool.flwr.app.config]"),
        ("pyproject.toml", ("[tool.flwr.app.config]", "[tool.flwr.app.config"), "no table [tool.flwr.app.config]"),
    ],
)
def test_a_checkout_without_the_place_is_refused(name: str, change: tuple[str, str], part: str, tree: Path) -> None:
    (tree / name).write_text((tree / name).read_text("utf-8").replace(*change), "utf-8")
    before = contents(tree)
    with pytest.raises(ConfigError) as refused:
        write(describe("fed-avgm", **NESTEROV), tree)
    assert part in str(refused.value)
    assert name in str(refused.value)
    assert contents(tree) == before


# The command.


def test_the_command_says_what_it_wrote_and_what_is_next(command: Line, tree: Path) -> None:
    before = set(contents(tree))
    options = ["--setting", "momentum=0.9", "--state", "velocity", "--loss", "squared-error", "--family", "fed_x"]
    code, out, err = command("new-algorithm", "fed-avgm", *options, "--class-name", "FedAvgM", "--into", tree)
    assert (code, err) == (0, "")
    new = set(contents(tree)) - before
    assert new == {*(f"{folder}/fed_x.py" for folder in FLOORS), "tests/algorithms/test_fed_x.py"}
    told = [line.strip() for line in out.splitlines() if line.startswith("  ")]
    assert {*new, "pyproject.toml", *PAGES} < set(told)
    assert told[-3:] == [
        "pytest tests/algorithms/test_fed_x.py",
        "pytest tests/battery -k fed-avgm",
        "python -m simulations run --clients 4 -c 'strategy=\"fed-avgm\"' --out runs/fed-avgm",
    ]
    assert "class FedAvgM(PayloadStrategy)" in (tree / "strategies" / "fed_x.py").read_text("utf-8")
    assert "default_loss = SQUARED_ERROR" in (tree / "clients" / "fed_x.py").read_text("utf-8")


# The tutorial.


def tutorial_files() -> dict[str, str]:
    """The page's Python blocks by the path that stands before each."""
    lines = PAGE.read_text("utf-8").splitlines()
    found = {}
    for block in blocks(PAGE):
        if block.language == "python":
            named = re.fullmatch(r"`([a-z_/]+\.py)`:", lines[block.line - 4].strip())
            assert named, f"{block}: no path before it"
            found[named[1]] = block.text
    return found


def tutorial_commands() -> list[str]:
    return [line for block in blocks(PAGE) if block.language == "sh" for line in block.text.splitlines()]


def test_the_page_has_a_block_for_each_file_that_the_generator_names() -> None:
    one = describe("fed-avgm", **NESTEROV)
    assert sorted(tutorial_files()) == sorted(map(str, files(one)))
    assert all(MARK not in text for text in tutorial_files().values())
    first, *rest = tutorial_commands()
    assert first.startswith("python -m simulations new-algorithm fed-avgm ")
    assert [command.split()[0] for command in rest] == ["pytest", "pytest", "python", "python", "python"]
    table = rows(section(PAGE, "Generate the stubs"))
    assert [codes(row[0])[0] for row in table] == list(map(str, files(one)))


class Workplace:
    """A copy of the tree as a contributor has it, under version control."""

    def __init__(self, root: Path) -> None:
        self.root = root
        # a copy without version control, as the gate's is, has no list of its files
        ignored = [line.rstrip("/") for line in (PROJECT / ".gitignore").read_text("utf-8").splitlines() if line]
        shutil.copytree(PROJECT, root, ignore=shutil.ignore_patterns(".git", *ignored), dirs_exist_ok=True)
        self.run("git init -q")
        self.commit("as it was")

    def run(self, command: str, fails: bool = False) -> str:
        """A line of the shell, with this copy's modules and this interpreter's commands."""
        environment = {**os.environ, "PYTHONPATH": str(self.root), "PATH": f"{SCRIPTS}:{os.environ['PATH']}"}
        done = subprocess.run(
            command, shell=True, cwd=self.root, env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode != 0) == fails, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout + done.stderr

    def commit(self, message: str) -> None:
        self.run("git add -A")
        self.run(f"git -c user.name=a -c user.email=a@example.org commit -q -m '{message}'")

    def changed(self) -> set[str]:
        """The files that differ from the last commit, new ones among them."""
        return {line[3:] for line in self.run("git status --porcelain --untracked-files=all").splitlines()}

    def check(self) -> None:
        """What a change must pass before its tests."""
        for command in ("ruff format --check .", "ruff check .", "mypy", "lint-imports --no-cache"):
            self.run(command)


@pytest.mark.slow
def test_the_tutorial_holds_to_the_letter(tmp_path: Path) -> None:
    place = Workplace(tmp_path)
    if (PROJECT / ".mypy_cache").exists():  # without it the type checker reads PyTorch first
        shutil.copytree(PROJECT / ".mypy_cache", tmp_path / ".mypy_cache")
    generate, *commands = tutorial_commands()
    pages = tutorial_files()

    # The stubs of this algorithm, and of one with every option, pass the checks; their tests fail.
    place.run(generate)
    written = place.changed()
    assert written == {*pages, "pyproject.toml", *PAGES}
    options = "--setting rate=0.5 --down momentum --up momentum --state momentum --memory control --loss squared-error"
    place.run(f"python -m simulations new-algorithm all-of-it {options}")
    place.check()
    told = place.run("pytest -q tests/algorithms/test_fed_avgm.py tests/algorithms/test_all_of_it.py", fails=True)
    assert "2 failed" in told
    assert "fit of round 1: fill in the local steps" in told
    assert "2 failed" in place.run(
        "pytest -q tests/apps/test_registry.py -k 'fill_in and (fed_avgm or all_of_it)'", fails=True
    )
    place.run("git checkout -q . && git clean -fdq payloads clients strategies apps tests")
    assert place.changed() == set()

    # Filled in by the page's blocks, with nothing else changed.
    place.run(generate)
    place.commit("what the generator wrote")
    for name, text in pages.items():
        (tmp_path / name).write_text(text, "utf-8")
    assert place.changed() == set(pages)
    place.check()
    assert "passed" in place.run(commands[0])
    assert "passed" in place.run(commands[1])
    for command in commands[2:]:
        place.run(command)
    momentum, plain = (
        json.loads((tmp_path / "runs" / name / "result.json").read_text("utf-8"))["metrics"]["auc"]
        for name in ("fed-avgm", "fedavg")
    )
    assert momentum > 0.8 > plain + 0.2
    place.run("pytest -q tests/docs/test_configuration.py tests/docs/test_privacy.py tests/apps/test_registry.py")
    assert {name for name in place.changed() if not name.startswith("runs/")} == set(pages)

    # Its test sees a wrong update.
    strategy = tmp_path / "strategies" / "fed_avgm.py"
    right, wrong = "beta * self.state.velocity + change", "self.state.velocity + change"
    assert right in pages["strategies/fed_avgm.py"]
    strategy.write_text(pages["strategies/fed_avgm.py"].replace(right, wrong), "utf-8")
    assert "5 failed, 1 passed" in place.run(commands[0], fails=True)
