"""The compose files, the Dockerfile and the units of deploy/: their flags, files and variables are those there are."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

PROJECT = Path(__file__).resolve().parents[2]
DEPLOY = PROJECT / "deploy"
UNITS = ["florilegium-superlink.service", "florilegium-supernode@.service"]
COMPOSE = ["superlink.compose.yml", "supernode.compose.yml"]
VARIABLE = re.compile(r"\$\{(\w+)[^}]*\}")


@pytest.fixture(scope="module")
def flags() -> dict[str, set[str]]:
    """The options of Flower's two commands."""
    known = {}
    for command in ("flower-superlink", "flower-supernode"):
        program = Path(sys.executable).with_name(command)
        told = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
        known[command] = set(re.findall(r"--[a-z][a-z-]+", told))
    return known


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files that the scripts make, for one site called SITE."""
    folder = tmp_path_factory.mktemp("made")
    subprocess.run([DEPLOY / "certificates.sh", "tls", "superlink.example.org"], cwd=folder, check=True)
    subprocess.run([DEPLOY / "node-key.sh", "keys", "SITE"], cwd=folder, check=True)
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def compose(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / name).read_text("utf-8"))
    return loaded


def services(name: str) -> dict[str, Any]:
    return dict(compose(name)["services"])


def unit(name: str) -> list[tuple[str, str, str]]:
    """(section, key, value) of every line, continued lines joined."""
    entries, section = [], ""
    for line in (DEPLOY / name).read_text("utf-8").replace("\\\n", " ").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            entries.append((section, key, value))
    return entries


def command(name: str) -> list[str]:
    """What a unit starts."""
    (start,) = [value for _, key, value in unit(name) if key == "ExecStart"]
    return shlex.split(start)


def named(words: list[str]) -> list[str]:
    return [word.partition("=")[0] for word in words if word.startswith("--")]


@pytest.mark.parametrize("name", COMPOSE)
def test_a_compose_file_s_commands_are_flower_s(name: str, flags: dict[str, set[str]]) -> None:
    for service in services(name).values():
        component = "flower-" + service["build"]["args"]["COMPONENT"]
        assert len(service["command"]) >= 4
        assert set(named(service["command"])) == {word.partition("=")[0] for word in service["command"]}
        assert set(named(service["command"])) <= flags[component]


@pytest.mark.parametrize("name", COMPOSE)
def test_a_container_has_what_its_command_reads(name: str, made: set[str]) -> None:
    for service in services(name).values():
        mounts = [volume.rsplit(":ro", 1)[0].rpartition(":")[::2] for volume in service["volumes"]]
        targets = {target for _, target in mounts}
        volumes = {source for source, _ in mounts if not source.startswith((".", "$"))}
        assert volumes == set(compose(name)["volumes"])
        files = {VARIABLE.sub(r"\1", source.removeprefix("../")) for source, _ in mounts if source.startswith("../")}
        assert files <= made
        for path in re.findall(r"(?<==)/[\w./]+", " ".join(service["command"])):
            assert path in targets or str(Path(path).parent) in targets
        assert service["restart"] == "unless-stopped"
        build = service["build"]
        assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"


def test_the_port_is_not_published_to_the_world() -> None:
    (superlink,) = services("superlink.compose.yml").values()
    assert superlink["ports"] == ["${SUPERLINK_BIND:-127.0.0.1}:8000:8000"]
    program = superlink["healthcheck"]["test"][-1]
    compile(program, "healthcheck", "exec")
    assert "/tls/ca.crt" in program


def test_the_image_has_the_whole_project_and_the_flower_it_needs() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))
    lines = (DEPLOY / "Dockerfile").read_text("utf-8").splitlines()
    copied = [word for line in lines if line.startswith("COPY") for word in shlex.split(line)[2:-1]]
    assert set(copied) >= {*project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"], "pyproject.toml"}
    assert [name for name in copied if not (PROJECT / name).exists()] == []
    (flower,) = [each for each in map(Requirement, project["project"]["dependencies"]) if each.name == "flwr"]
    (tag,) = [line.partition("=")[2] for line in lines if line.startswith("ARG FLOWER=")]
    version, python, distribution = tag.split("-")
    assert version in flower.specifier
    assert python.removeprefix("py") in ("3.11", "3.12", "3.13")  # requires-python
    assert distribution.startswith("ubuntu")  # PyTorch has no wheels for Alpine


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_s_command_is_flower_s(name: str, flags: dict[str, set[str]], made: set[str]) -> None:
    program, *words = command(name)
    assert set(named(words)) <= flags[Path(program).name]
    assert len(named(words)) >= 5
    files = {word.removeprefix("/etc/florilegium/").replace("%i", "SITE") for word in words if word.startswith("/etc")}
    assert files
    assert files <= made
    # Flower's own child processes are found by their names
    assert any(key == "Environment" and f"PATH={Path(program).parent}:" in value for _, key, value in unit(name))


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_nothing_wrong(name: str, tmp_path: Path) -> None:
    folder = Path(sys.executable).parent
    text = (DEPLOY / name).read_text("utf-8").replace("/opt/florilegium/.venv/bin", str(folder))
    (tmp_path / name).write_text(text, encoding="utf-8")
    told = subprocess.run(["systemd-analyze", "verify", "--man=no", tmp_path / name], capture_output=True, text=True)
    assert told.stderr == ""
    assert told.returncode == 0
