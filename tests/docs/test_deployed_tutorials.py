"""Tests of tutorials with a SuperLink and SuperNodes: their commands have valid options, and each page runs as one
script."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from apps.config import parse_run_config
from apps.run_config.pairs import parse_pairs
from simulations.kits.project import read_project
from tests.battery.engines import end_processes
from tests.battery.ports import free_ports
from tests.docs.markdown import PROJECT, blocks
from tests.programs import ran

COMMANDS = ("flower-superlink", "flower-supernode", "flwr supernode register", "flwr run")
KIT_COMMANDS = ("florilegium provision", "florilegium kit keys", "florilegium kit pin", "florilegium run")
SECONDS = 900.0


@dataclass(frozen=True)
class Tutorial:
    """A tutorial's page.

    Attributes:
        name: The page's file.
        home: The folder of Flower's files.
        result: The run directory.
        words: The words that the script prints.
        most: The maximum number of commands that a reader types. A loop counts as one.
    """

    name: str
    home: str
    result: str
    words: str
    most: int

    def code(self, language: str) -> str:
        page = PROJECT / "docs" / "tutorials" / f"{self.name}.md"
        return "\n".join(block.text for block in blocks(page) if block.language == language)


RESULTS = "kits/superlink/results"
SITES = Tutorial("three-sites", "kits", f"{RESULTS}/deployed", "the same model, to the bit", 6)
COMPANIES = Tutorial("three-companies", "kits", f"{RESULTS}/score", "3 + 3 + 3 columns; labels of party 0", 12)
TWO = Tutorial("two-companies", "superlink", "results/new", "2 parties score 300 rows each, for party 0", 12)
PAGES = pytest.mark.parametrize("page", [SITES, COMPANIES, TWO], ids=lambda page: page.name)


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**kept, "PATH": path, "PYTHONPATH": str(PROJECT), "FLWR_DISABLE_UPDATE_CHECK": "1", "HOME": str(folder)}


def options_of(page: Tutorial, command: str) -> set[str]:
    """Return the options that the page passes to a command."""
    joined = page.code("sh").replace("\\\n", " ")
    uses = re.findall(rf"(?:^|[ ;(]){command} ([^;|&>\n]*)", joined, re.MULTILINE)
    assert uses, f"{command} is not on the page"
    return {option for use in uses for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", use)}


@pytest.mark.parametrize("command", [*COMMANDS, *KIT_COMMANDS])
def test_every_option_is_one_of_the_command(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("FLWR_DISABLE_UPDATE_CHECK", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    known = set(re.findall(r"--[a-z][a-z-]+", ran(*command.split(), "--help")))
    pages = (TWO,) if command in COMMANDS else (COMPANIES,) if " kit " in command else (SITES,)
    for page in pages:
        assert options_of(page, command) <= known


@pytest.mark.parametrize("page", [SITES, COMPANIES], ids=lambda page: page.name)
def test_every_project_file_is_valid(page: Tutorial, tmp_path: Path) -> None:
    text = re.search(r"cat > project.toml <<END\n(.*?)END", page.code("sh"), re.DOTALL)
    assert text
    (tmp_path / "project.toml").write_text(text[1].replace("$PWD", str(tmp_path)))
    assert read_project(tmp_path / "project.toml").run


def test_every_key_of_the_run_is_known() -> None:
    for text in re.findall(r'--run-config "(.*?)"', TWO.code("sh"), re.DOTALL):
        token = text.replace("$(cat results/score/run-token)", "0" * 32)
        parse_run_config(parse_pairs("--run-config", token.replace("\\\n", "")))


@PAGES
def test_pages_take_few_commands(page: Tutorial) -> None:
    """A loop, a here-document and a continued line are one command each."""
    script = re.sub(r"<<END\n.*?^END$", "", page.code("sh"), flags=re.DOTALL | re.MULTILINE)
    commands = [line for line in script.replace("\\\n", " ").splitlines() if re.match(r"(?!done)\w|\"", line)]
    assert len(commands) <= page.most, commands
    assert f"takes {len(commands)} commands" in (PROJECT / f"docs/tutorials/{page.name}.md").read_text()


@pytest.mark.deployment
@PAGES
def test_the_page_as_one_script(page: Tutorial, tmp_path: Path) -> None:
    """The checkout and free ports replace the page's own."""
    superlink, *nodes = free_ports(7)
    script = page.code("sh").replace("$HOME/florilegium", str(PROJECT))
    script = script.replace(':8000"\n', f':{superlink}"\nfirst-port = {nodes[0]}\n' if page is not TWO else ':8000"\n')
    script = script.replace("8000", str(superlink))
    for number, port in enumerate(nodes[3:]):
        script = script.replace(f":700{number}", f":{port}")
    for port, free in (("910$number", nodes[:3]), ("700$number", nodes[3:])):
        script = script.replace(port, f"$(echo {' '.join(map(str, free))} | cut -d' ' -f$((number + 1)))")
    if tables := page.code("python"):
        ran("-c", tables, cwd=tmp_path)
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    finally:
        for home in (tmp_path / page.home, *tmp_path.glob("kits/*/flwr")):
            end_processes(home)
    logs = "\n".join(path.read_text()[-2000:] for path in (*tmp_path.glob("*.log"), *tmp_path.glob("*/log")))
    assert page.words in done.stdout, f"{done.stdout}\n{done.stderr}\n{logs}"
    assert (tmp_path / page.result / "result.json").exists()
