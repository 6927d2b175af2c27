"""docs/tutorials/three-sites.md: its commands have these options, and as one script they do what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from apps.config import parse_run_config
from apps.run_config.pairs import parse_pairs
from tests.battery.engines import end_processes
from tests.battery.ports import free_ports
from tests.docs.markdown import PROJECT, blocks
from tests.programs import ran

PAGE = PROJECT / "docs" / "tutorials" / "three-sites.md"
SCRIPT = "\n".join(block.text for block in blocks(PAGE) if block.language == "sh")
COMMANDS = ("flower-superlink", "flower-supernode", "flwr supernode register", "flwr supernode list", "flwr run")
DOCTOR = "python -m apps.doctor site"
SECONDS = 900.0


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**kept, "PATH": path, "PYTHONPATH": str(PROJECT), "FLWR_DISABLE_UPDATE_CHECK": "1", "HOME": str(folder)}


def options_of(command: str) -> set[str]:
    """The options that a command is given on the page."""
    joined = SCRIPT.replace("\\\n", " ")
    uses = re.findall(rf"(?:^|[ ;(]){command} ([^;|&>\n]*)", joined, re.MULTILINE)
    assert uses, f"{command} is not on the page"
    return {option for use in uses for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", use)}


@pytest.mark.parametrize("command", [*COMMANDS, DOCTOR])
def test_every_option_is_one_of_the_command(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("FLWR_DISABLE_UPDATE_CHECK", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    told = ran(*command.removeprefix("python ").split(), "--help")
    assert options_of(command) <= set(re.findall(r"--[a-z][a-z-]+", told))


def test_every_key_of_the_run_is_known(tmp_path: Path) -> None:
    text = re.search(r"cat > run.toml <<END\n(.*?)END", SCRIPT, re.DOTALL)
    assert text
    (tmp_path / "run.toml").write_text(text[1])
    keys = parse_pairs("--run-config", str(tmp_path / "run.toml"))
    added = re.findall(r"^echo .([a-z-]+) =", SCRIPT, re.MULTILINE)
    assert added == ["output-dir", "run-name"]
    parse_run_config({**keys, **dict.fromkeys(added, "x")})


@pytest.mark.deployment
def test_the_page_as_one_script(tmp_path: Path) -> None:
    """With the checkout and free ports in the place of its own."""
    superlink, *nodes = free_ports(4)
    script = SCRIPT.replace("$HOME/florilegium", str(PROJECT)).replace("8000", str(superlink))
    script = script.replace('"910$site"', f'"$(echo {" ".join(map(str, nodes))} | cut -d" " -f$site)"')
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
        end_processes(tmp_path / "flwr")
    logs = "\n".join(path.read_text()[-2000:] for path in tmp_path.glob("*.log"))
    assert "the same model, to the bit" in done.stdout, f"{done.stdout}\n{done.stderr}\n{logs}"
    assert (tmp_path / "results" / "deployed" / "result.json").exists()
