"""The files of deploy/ for containers, Kubernetes and systemd use existing flags, files and variables only."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement

from simulations.kits.kit import Kit
from simulations.kits.project import read_project
from simulations.kits.provision import provision
from simulations.kits.start import command_of

PROJECT = Path(__file__).resolve().parents[2]
DEPLOY = PROJECT / "deploy"
KITS = ["superlink", "SITE"]
MANIFESTS = ["run.yml", "superlink.yml", "supernode.yml"]
# the options that the doctor does not read
EXTRA = {"flower-superlink": {"--enable-supernode-auth"}, "flower-supernode": {"--port"}}
PORTS = {"superlink": {"--port"}, "supernode": set[str]()}  # a pod has one SuperNode, with the usual port


@pytest.fixture(scope="module")
def flags() -> dict[str, set[str]]:
    """Return the options of Flower's commands."""
    known = {}
    for command in ("flower-superlink", "flower-supernode", "flwr run", "flwr log", "flwr list"):
        program, *words = command.split()
        words = [str(Path(sys.executable).with_name(program)), *words, "--help"]
        told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        known[command] = set(re.findall(r"--[a-z][a-z-]+", told))
    return known


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files that the scripts create for a site called SITE."""
    folder = tmp_path_factory.mktemp("made")
    subprocess.run([DEPLOY / "certificates.sh", "tls", "superlink.example.org"], cwd=folder, check=True)
    subprocess.run([DEPLOY / "node-key.sh", "keys", "SITE"], cwd=folder, check=True)
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the kits of a SuperLink and of a site called SITE."""
    folder = tmp_path_factory.mktemp("kits")
    (folder / "project.toml").write_text('name = "P"\nsuperlink = "superlink.example.org:8000"\n[sites.SITE]\n')
    provision(read_project(folder / "project.toml"), folder)
    return folder


def services(kits: Path, name: str) -> dict[str, Any]:
    """Return the services in the compose file of a kit."""
    return dict(yaml.safe_load((kits / name / "compose.yml").read_text("utf-8"))["services"])


def manifests(name: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return a file's objects by kind and name."""
    objects = yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text("utf-8"))
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def workload(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the specs of a file's StatefulSet or Job, and of its pod."""
    (spec,) = [each["spec"] for each in manifests(name).values() if "template" in each.get("spec", {})]
    return spec, spec["template"]["spec"]


def secrets() -> dict[str, dict[str, str]]:
    """Return the files that the page's commands put into each Secret, by their names in the Secret."""
    page = (PROJECT / "docs" / "kubernetes.md").read_text("utf-8")
    kept: dict[str, dict[str, str]] = {}
    for secret, options in re.findall(r"kubectl create secret generic (\w+) (.+)", page):
        for word in shlex.split(options):
            file, _, path = word.removeprefix("--from-file=").rpartition("=")
            kept.setdefault(secret, {})[file or Path(path).name] = path
    return kept


def named(words: list[str]) -> list[str]:
    return [word.partition("=")[0] for word in words if word.startswith("--")]


@pytest.mark.parametrize("name", KITS)
def test_a_kit_starts_flowers_command(name: str, kits: Path, flags: dict[str, set[str]]) -> None:
    folder = kits / name
    kit = Kit.read(folder)
    words = command_of(kit, folder)
    command = "flower-superlink" if name == "superlink" else "flower-supernode"
    assert len(named(words)) >= 4
    assert {*named(words), *EXTRA[command]} <= flags[command]
    kit.make_keys(folder)
    files = [Path(word) for word in words if word.startswith(str(folder)) and "state.db" not in word]
    assert len(files) >= 2
    assert all(path.is_file() for path in files)


@pytest.mark.parametrize("name", KITS)
def test_a_container_starts_the_kit(name: str, kits: Path) -> None:
    for service in services(kits, name).values():
        assert service["entrypoint"][:5] == ["florilegium", "kit", "start", "/kit", "--unchecked"]
        assert service["volumes"][0] == ".:/kit"
        assert service["restart"] == "unless-stopped"
        head = (kits / name / "compose.yml").read_text("utf-8")
        assert re.search(rf"docker build -f deploy/Dockerfile .* -t {service['image']} \.\n", head)


@pytest.mark.parametrize("name", KITS)
def test_compose_files_obey_the_compose_specification(name: str, kits: Path) -> None:
    """The parser knows neither variables, which are at their defaults here, nor YAML's merge keys."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (kits / name / "compose.yml").read_text("utf-8"))
    content = yaml.safe_load(text)
    assert content["name"] == f"p-{name.lower()}"  # without capitals
    compose = pytest.importorskip("compose_spec")
    assert compose.PyCompose.from_json(json.dumps(content)).service_names()


def test_the_port_is_not_published_to_the_world(kits: Path) -> None:
    (superlink,) = services(kits, "superlink").values()
    assert superlink["ports"] == ["${SUPERLINK_BIND:-127.0.0.1}:8000:8000"]
    program = superlink["healthcheck"]["test"][-1]
    compile(program, "healthcheck", "exec")
    assert "/kit/ca.crt" in program


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


def test_the_image_s_packages_are_locked_by_hashes() -> None:
    """Both files pin all packages of the project, its build and the image's Flower, as constraints.txt does."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))
    locked: dict[str, Requirement] = {}
    for name in ("requirements.lock", "torch.lock"):
        entries = re.split(r"\n(?=\S)", (DEPLOY / name).read_text("utf-8").strip())
        for entry in entries:
            text, *hashes = re.split(r" \\\n    --hash=", entry)
            assert hashes, entry
            assert all(re.fullmatch("sha256:[0-9a-f]{64}", one) for one in hashes)
            requirement = Requirement(text)
            assert requirement.name not in locked
            locked[requirement.name] = requirement
    needed = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    pinned = (PROJECT / "constraints.txt").read_text("utf-8"), (DEPLOY / "image.in").read_text("utf-8")
    needed += [line for text in pinned for line in text.splitlines() if line and not line.startswith("#")]
    for requirement in map(Requirement, needed):
        (version,) = [one.version for one in locked[requirement.name].specifier]
        assert version in requirement.specifier, requirement
    (tag,) = re.findall(r"ARG FLOWER=([\d.]+)-py3.13", (DEPLOY / "Dockerfile").read_text("utf-8"))
    assert locked["flwr"].specifier == Requirement(f"flwr=={tag}").specifier


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize("name", KITS)
def test_systemd_finds_nothing_wrong(name: str, kits: Path, tmp_path: Path) -> None:
    text = (kits / name / f"{name}.service").read_text("utf-8")
    # Flower's own child processes are found by their names
    assert "PATH=/opt/florilegium/.venv/bin:" in text
    path = tmp_path / f"{name}.service"
    path.write_text(text.replace("/opt/florilegium/.venv/bin", str(Path(sys.executable).parent)), encoding="utf-8")
    checked = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True)
    assert checked.stderr == ""
    assert checked.returncode == 0


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@pytest.mark.parametrize("name", MANIFESTS)
def test_kubernetes_knows_every_field(name: str, version: str) -> None:
    for each in manifests(name).values():
        kubernetes_validate.validate(each, version, strict=True)
    assert {path.name for path in (DEPLOY / "kubernetes").iterdir()} == set(MANIFESTS)


@pytest.mark.parametrize(("component", "name"), [("superlink", "superlink"), ("supernode", "SITE")])
def test_a_pod_runs_what_the_kit_does(component: str, name: str, kits: Path) -> None:
    container = workload(f"{component}.yml")[1]["containers"][0]
    images = {service["image"] for service in services(kits, name).values()}
    assert container["name"] == component
    assert images == {container["image"]}
    words = command_of(Kit.read(kits / name), kits / name)
    assert {*named(container["args"])} == {*named(words), *EXTRA[f"flower-{component}"]} - {"--port"} | PORTS[component]


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_pod_has_what_it_names(name: str, made: set[str]) -> None:
    spec, pod = workload(name)
    declared = manifests(name)
    volumes = {each["name"]: each for each in pod["volumes"]}
    claims = {each["metadata"]["name"] for each in spec.get("volumeClaimTemplates", [])}
    mounted = [mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]]
    assert set(mounted) == set(volumes) | claims
    for volume in volumes.values():
        assert ("configMap" not in volume) or ("ConfigMap", volume["configMap"]["name"]) in declared
    for container in pod["containers"]:
        paths = {mount["mountPath"]: volumes.get(mount["name"], {}) for mount in container["volumeMounts"]}
        words = " ".join(container.get("args", []))
        for folder, file in re.findall(r"=(/\w+)/([\w.]+)", words):
            if secret := paths[folder].get("secret"):
                kept = secrets()[secret["secretName"]][file]
                assert kept.replace("hospital-1", "SITE") in made
        known = [declared["ConfigMap", each["configMapRef"]["name"]]["data"] for each in container.get("envFrom", [])]
        assert set(re.findall(r"\$\((\w+)\)", words)) == {key for data in known for key in data}


@pytest.mark.parametrize("name", MANIFESTS)
def test_pods_are_confined(name: str) -> None:
    _, pod = workload(name)
    user = re.search(r"User (\d+)", (PROJECT / "docs" / "deployment.md").read_text("utf-8"))
    assert user
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == int(user[1])
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_only_the_fleet_s_paths_are_published() -> None:
    objects = manifests("superlink.yml")
    ports = {
        port["name"]: port["containerPort"]
        for each in workload("superlink.yml")[1]["containers"]
        for port in each["ports"]
    }
    published = {name: spec["spec"] for (kind, name), spec in objects.items() if kind == "Service"}
    assert {name for name, spec in published.items() if spec.get("type", "ClusterIP") != "ClusterIP"} == {"fleet"}
    assert all([port["targetPort"]] == [name] for name, spec in published.items() for port in spec["ports"])
    everyone, job = objects["NetworkPolicy", "superlink"]["spec"]["ingress"]
    assert (everyone["ports"][0]["port"], job["ports"][0]["port"]) == ("fleet", "superlink")
    run = workload("run.yml")[0]["template"]["metadata"]["labels"]
    assert job["from"][0]["podSelector"]["matchLabels"].items() <= run.items()
    settings = objects["ConfigMap", "proxy"]["data"]["nginx.conf"]
    assert re.findall(r"listen (\d+) ssl", settings) == [str(ports["fleet"])]
    assert re.findall(r"proxy_pass (\S+);", settings) == [f"https://127.0.0.1:{ports['superlink']}/v1/fleet/"]
    assert re.findall(r"location (\S+) ", settings) == ["/", "/v1/fleet/"]


def test_the_job_s_files_are_flower_s(flags: dict[str, set[str]]) -> None:
    files = manifests("run.yml")["ConfigMap", "run"]["data"]
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))
    assert tomllib.loads(files["run.toml"]).keys() <= project["tool"]["flwr"]["app"]["config"].keys()
    (connection,) = tomllib.loads(files["config.toml"])["superlink"].items()
    commands = re.findall(r"(flwr (?:run|log|list)) (.*)", files["run.sh"])
    assert len(commands) == 3
    for command, words in commands:
        assert set(re.findall(r"--[a-z-]+", words)) <= flags[command]
        assert f" {connection[0]} " in f" {words} "
    host, _, port = connection[1]["address"].partition(":")
    assert manifests("superlink.yml")["Service", host]["spec"]["ports"][0]["port"] == int(port)


@pytest.mark.parametrize(("status", "code"), [("finished:completed", 0), ("finished:failed", 1)])
def test_the_job_ends_as_its_run_does(status: str, code: int, tmp_path: Path) -> None:
    answers = {"run": {"success": True, "run-id": "12"}, "list": {"runs": [{"run-id": "12", "status": status}]}}
    for command, answer in answers.items():
        (tmp_path / command).write_text(json.dumps(answer, indent=2), encoding="utf-8")
    flwr = tmp_path / "flwr"
    flwr.write_text(f'#!/bin/sh\n[ "$1" = log ] && echo "log of $2" || cat "{tmp_path}/$1"\n', encoding="utf-8")
    flwr.chmod(0o755)
    script = manifests("run.yml")["ConfigMap", "run"]["data"]["run.sh"]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stdout.splitlines()[-2:] == ["log of 12", f"run 12: {status}"]
