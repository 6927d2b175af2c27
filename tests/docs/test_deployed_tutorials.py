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
from tests.battery.engines import end_processes
from tests.battery.ports import free_ports
from tests.docs.markdown import PROJECT, blocks
from tests.programs import ran

COMMANDS = ("flower-superlink", "flower-supernode", "flwr supernode register", "flwr run")
LISTED, DOCTOR = "flwr supernode list", "python -m apps.doctor site"
SECONDS = 900.0
# maximum number of commands that a reader of a page about companies types; a loop counts as one
MOST = 12


@dataclass(frozen=True)
class Tutorial:
    """A tutorial's page.

    Attributes:
        name: The page's file.
        home: The folder of Flower's files.
        result: The run directory.
        words: The words that the script prints.
    """

    name: str
    home: str
    result: str
    words: str

    def code(self, language: str) -> str:
        page = PROJECT / "docs" / "tutorials" / f"{self.name}.md"
        return "\n".join(block.text for block in blocks(page) if block.language == language)


SITES = Tutorial("three-sites", "flwr", "results/deployed", "the same model, to the bit")
COMPANIES = Tutorial("three-companies", "superlink", "results/score", "3 + 3 + 3 columns; labels of party 0")
TWO = Tutorial("two-companies", "superlink", "results/new", "2 parties score 300 rows each, for party 0")


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


@pytest.mark.parametrize("command", [*COMMANDS, LISTED, DOCTOR])
def test_every_option_is_one_of_the_command(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("FLWR_DISABLE_UPDATE_CHECK", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    known = set(re.findall(r"--[a-z][a-z-]+", ran(*command.removeprefix("python ").split(), "--help")))
    for page in (SITES, COMPANIES, TWO) if command in COMMANDS else (SITES,):
        assert options_of(page, command) <= known


def test_every_key_of_the_run_is_known(tmp_path: Path) -> None:
    text = re.search(r"cat > run.toml <<END\n(.*?)END", SITES.code("sh"), re.DOTALL)
    assert text
    (tmp_path / "run.toml").write_text(text[1])
    keys = parse_pairs("--run-config", str(tmp_path / "run.toml"))
    added = re.findall(r"^echo .([a-z-]+) =", SITES.code("sh"), re.MULTILINE)
    assert added == ["output-dir", "run-name"]
    parse_run_config({**keys, **dict.fromkeys(added, "x")})
    for page in (COMPANIES, TWO):
        for text in re.findall(r'--run-config "(.*?)"', page.code("sh"), re.DOTALL):
            token = text.replace("$(cat results/score/run-token)", "0" * 32)
            parse_run_config(parse_pairs("--run-config", token.replace("\\\n", "")))


@pytest.mark.parametrize("page", [COMPANIES, TWO], ids=lambda page: page.name)
def test_companies_take_twelve_commands(page: Tutorial) -> None:
    """A loop, a here-document and a continued line are one command each."""
    script = re.sub(r"<<END\n.*?^END$", "", page.code("sh"), flags=re.DOTALL | re.MULTILINE)
    commands = [line for line in script.replace("\\\n", " ").splitlines() if re.match(r"(?!done)\w|\"", line)]
    assert len(commands) <= MOST, commands
    assert f"takes {len(commands)} commands" in (PROJECT / f"docs/tutorials/{page.name}.md").read_text()


@pytest.mark.deployment
@pytest.mark.parametrize("page", [SITES, COMPANIES, TWO], ids=lambda page: page.name)
def test_the_page_as_one_script(page: Tutorial, tmp_path: Path) -> None:
    """The checkout and free ports replace the page's own."""
    superlink, *nodes = free_ports(7)
    script = page.code("sh").replace("$HOME/florilegium", str(PROJECT)).replace("8000", str(superlink))
    script = script.replace('"910$site"', f'"$(echo {" ".join(map(str, nodes[:3]))} | cut -d" " -f$site)"')
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
        end_processes(tmp_path / page.home)
    logs = "\n".join(path.read_text()[-2000:] for path in (*tmp_path.glob("*.log"), *tmp_path.glob("*/log")))
    assert page.words in done.stdout, f"{done.stdout}\n{done.stderr}\n{logs}"
    assert (tmp_path / page.result / "result.json").exists()
