"""Startup kits: the project file's errors, the files and their modes, certificates that verify, and a second call."""

import re
import shutil
import ssl
import stat
import subprocess
import sys
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import tomli_w
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from apps.config import ConfigError, parse_run_config
from apps.doctor.credentials import certificate, node_key
from apps.parties.sites import policy_of
from apps.run_config.pairs import parse_pairs
from apps.sites.settings import KEYS
from apps.sites.site_config import effective, read_site
from simulations.kits import claim
from simulations.kits.credentials import make_node_key
from simulations.kits.kit import PEERS, Kit
from simulations.kits.names import KitError
from simulations.kits.project import Project, read_project
from simulations.kits.provision import provision
from simulations.kits.start import _check_pins, command_of
from simulations.kits.submit import submit
from tests.clients.test_identity import handshake
from tests.refusals import refuses
from vertical.policy import PolicyError
from vertical.transport.identity import Identity, client_context, server_context

PRIVATE = {"ca.key", "server.key", "node", "site.toml", "bank.key", "bank-authority.key"}
SITES: dict[str, Any] = {
    "name": "hospitals",
    "superlink": "127.0.0.1:8000",
    "hosts": ["superlink.example.org", "10.0.0.1"],
    "sites": {"north": {"data-path": "/srv/a.csv"}, "south": {}},
    "run": {"strategy": "fedx2", "fedx": {"gamma": 0.5}},
}
PARTIES: dict[str, Any] = {
    "name": "consortium",
    "superlink": "127.0.0.1:8000",
    "parties": {name: {"advertise": f"127.0.0.1:700{k}"} for k, name in enumerate(("bank", "retailer", "phone"))},
}


def project(folder: Path, base: dict[str, Any] = SITES, **changes: Any) -> Project:
    """Write a project file with changes of a base, and read it. None removes a key."""
    content = {key.replace("_", "-"): value for key, value in {**base, **changes}.items() if value is not None}
    (folder / "project.toml").write_text(tomli_w.dumps(content))
    return read_project(folder / "project.toml")


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the kits of three companies, each with its keys and the other companies' authorities."""
    out = tmp_path_factory.mktemp("companies")
    provision(project(out, PARTIES), out)
    for name in PARTIES["parties"]:
        _, authority = Kit.read(out / name).make_keys(out / name)
        for other in PARTIES["parties"]:
            shutil.copy(authority, out / other / PEERS)
    return out


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"name": None}, "name: got nothing, allowed: 1 to 40 letters"),
        ({"name": "a/b"}, "name: got 'a/b', allowed: 1 to 40 letters"),
        ({"superlink": "somewhere"}, "superlink: got 'somewhere', allowed: host:port"),
        ({"superlink": "a\nb:80"}, "superlink: got 'a.nb:80', allowed: host:port"),
        ({"hosts": ["$(id)"]}, "hosts: got .*, allowed: a list of host names"),
        ({"days": 0}, "days: got 0, allowed: an integer from 1 to 3650"),
        ({"keys": "here"}, "keys: got 'here', allowed: at-sites, in-kits"),
        ({"key": "in-kits"}, "key: got an unknown key, allowed: .*; did you mean 'keys'"),
        ({"sites": {}}, "sites: got neither table"),
        ({"parties": {"bank": {}}}, "sites: got both tables"),
        ({"sites": {"../x": {}}}, "sites.../x: got '../x', allowed: tables; names: 1 to 40"),
        ({"sites": {"superlink": {}}}, "sites.superlink: got 'superlink'"),
        ({"sites": {"a": {}, "A": {}}}, "sites.A: got a name twice"),
        ({"sites": {"a": {"least-cell": 1}}}, "sites.a.least-cell: got a setting that only the site's owner sets"),
        ({"sites": {"a": {"data-paht": "x"}}}, "sites.a.data-paht: got an unknown key.*did you mean 'data-path'"),
        ({"sites": {"a": {"split-seed": -1}}}, "sites.a: split-seed: got -1, allowed: an integer >= 0"),
        ({"run": {"strategy": "fedx3"}}, "run: strategy: got 'fedx3'"),
        ({"run": {"run-name": "x"}}, "run.run-name: got 'x'"),
        ({"run": {"strategy": "vfb2-svrg"}}, "run.strategy: got 'vfb2-svrg', allowed: a strategy for sites"),
    ],
)
def test_one_error_names_the_bad_key(changes: dict[str, Any], fields: str, tmp_path: Path) -> None:
    with refuses(ConfigError, fields):
        project(tmp_path, **changes)


def test_parties_need_an_address_and_make_their_own_keys(tmp_path: Path) -> None:
    with refuses(ConfigError, "parties.bank.advertise: got nothing"):
        project(tmp_path, PARTIES, parties={"bank": {}})
    with refuses(ConfigError, "keys: got 'in-kits', allowed: 'at-sites' with parties"):
        project(tmp_path, PARTIES, keys="in-kits")


def test_the_operator_makes_no_key_of_a_site(tmp_path: Path) -> None:
    provision(project(tmp_path), tmp_path)
    private = {path.name for path, content in contents(tmp_path).items() if b"PRIVATE KEY" in content}
    assert private == {"ca.key", "server.key"}


def test_private_files_have_mode_600(made: Path, tmp_path: Path) -> None:
    provision(project(tmp_path, keys="in-kits"), tmp_path / "kits")
    for path in (*made.rglob("*"), *(tmp_path / "kits").rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.is_dir() and path.name != "results":
            assert mode == 0o700, path
        elif path.is_file() and (b"PRIVATE KEY" in path.read_bytes() or path.name in PRIVATE):
            assert mode == 0o600, path
        elif path.suffix == ".sh":
            assert mode == 0o700
            assert subprocess.run(["sh", "-n", path], check=True).returncode == 0
    assert (tmp_path / "kits" / "north" / "node").exists()


def test_the_doctor_accepts_certificate_and_keys(tmp_path: Path) -> None:
    provision(project(tmp_path), tmp_path)
    link = tmp_path / "superlink"
    assert "is valid for 364 days" in certificate(link / "server.pem", link / "ca.crt", link / "server.key")
    (public,) = Kit.read(tmp_path / "north").make_keys(tmp_path / "north")
    assert "secp384r1" in node_key(tmp_path / "north" / "node")
    assert public.name == "north.pub"
    load_ssh_public_key(public.read_bytes())
    with pytest.raises(FileExistsError, match="a key is never replaced"):
        make_node_key(tmp_path / "north" / "node", "north")


@pytest.mark.parametrize("host", ["superlink.example.org", "10.0.0.1", "localhost", "elsewhere.example.org"])
def test_tls_with_the_certificate(host: str, tmp_path: Path) -> None:
    """A client that trusts only the authority accepts the names of the project file, and no other name."""
    provision(project(tmp_path), tmp_path)
    link = tmp_path / "superlink"
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=link / "ca.crt")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    server.load_cert_chain(link / "server.pem", link / "server.key")

    if host.startswith("elsewhere"):
        with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
            handshake(server, client, host)
    else:
        handshake(server, client, host)


def test_a_site_reads_its_settings(tmp_path: Path) -> None:
    provision(project(tmp_path), tmp_path)
    kit = Kit.read(tmp_path / "south")
    node = parse_pairs("--node-config", command_of(kit, tmp_path / "south")[-1])
    assert (node["partition-id"], node["num-partitions"]) == (1, 2)
    settings = effective(node)
    assert settings["state-dir"] == str(tmp_path / "south" / "state")  # relative paths begin at the file's folder
    assert settings["stay"] == 600
    assert read_site({"site-config": str(tmp_path / "north" / "site.toml")})["data-path"] == "/srv/a.csv"
    text = (tmp_path / "south" / "site.toml").read_text()
    assert all(key in text for key, row in KEYS.items() if row.table != "vertical")
    flat = parse_pairs("--run-config", str(tmp_path / "south" / "run.toml"))
    assert parse_run_config(flat).run.strategy == "fedx2"


def test_every_commented_default_is_accepted(made: Path, tmp_path: Path) -> None:
    """Uncommented defaults change nothing. A key without a default is not TOML until its owner writes a value."""
    lines = (made / "bank" / "site.toml").read_text().splitlines()
    entries = [line.removeprefix("# ") for line in lines if line.removeprefix("# ").partition(" = ")[0] in KEYS]
    defaults = {}
    for entry in entries:
        key = entry.partition(" = ")[0]
        if "..." not in entry:
            defaults.update(tomllib.loads(entry))
        elif KEYS[key].field.annotation in (int | None, float | None):
            with pytest.raises(tomllib.TOMLDecodeError):
                tomllib.loads(entry)
    path = tmp_path / "all.toml"
    path.write_text(tomli_w.dumps({key: value for key, value in defaults.items() if value != ""}))
    assert len(read_site({"site-config": str(path)})) > 20


def test_a_second_call_keeps_keys_and_adds_a_site(tmp_path: Path) -> None:
    first = project(tmp_path, keys="in-kits")
    out = tmp_path / "kits"
    provision(first, out)
    (out / "north" / "site.toml").write_text("[data]\nsplit-seed = 3\n")
    before = contents(out)
    provision(first, out)
    assert contents(out) == before
    lines = provision(project(tmp_path, keys="in-kits", sites={**SITES["sites"], "east": {}}), out)
    after = contents(out)
    changed = {path for path in before if after[path] != before[path]}
    assert {path.name for path in changed} == {"kit.toml", "README.md"}
    assert Kit.read(out / "north").members == ["north", "south", "east"]
    assert (out / "superlink" / "sites" / "east.pub").exists()
    assert sum("updated: send kit.toml again" in line for line in lines) == 3


def test_a_wrong_second_call_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "kits"
    provision(project(tmp_path), out)
    before = contents(out)
    for changes, fields in (
        ({"sites": {"south": {}, "north": {}}}, "place 1, as in"),
        ({"sites": {"north": {}}}, "--out: got south, a kit of the project hospitals"),
        ({"name": "others"}, "--out: got .*, a kit of the project hospitals"),
        ({"hosts": ["new.example.org"]}, "got a certificate without new.example.org.*add --renew"),
    ):
        with refuses(ConfigError, fields):
            provision(project(tmp_path, **changes), out)  # type: ignore[arg-type]
    (out / "authority" / "ca.key").rename(tmp_path / "offline")
    with refuses(ConfigError, "ca.key: got no file"):
        provision(project(tmp_path, hosts=["new.example.org"]), out, renew=True)
    (tmp_path / "offline").rename(out / "authority" / "ca.key")
    assert contents(out) == before
    provision(project(tmp_path, hosts=["new.example.org"]), out, renew=True)
    changed = {path.name for path, content in contents(out).items() if before.get(path) != content}
    assert changed == {"server.key", "server.pem"}


def test_companies_recognise_each_other_and_no_one_else(made: Path, tmp_path: Path) -> None:
    kits = Path(shutil.copytree(made, tmp_path / "kits"))
    with refuses(KitError, "pinned-peers: got nothing"):
        _check_pins(kits / "bank")
    pins = Kit.read(kits / "bank").pin_peers(kits / "bank")
    assert list(pins) == ["retailer", "phone"]
    settings = read_site({"site-config": str(kits / "bank" / "site.toml")})
    policy = policy_of(settings)
    assert (set(policy.pins), policy.fewest_parties) == (set(pins.values()), 3)
    Kit.read(kits / "bank").pin_peers(kits / "bank")  # again, such as after a new company has joined
    identities = {
        name: Identity.from_files(kits / name / f"{name}.crt", kits / name / f"{name}.key")
        for name in PARTIES["parties"]
    }
    certificates = [each.certificate for each in identities.values()]
    assert policy.check_peers(certificates, 0, certificates[0]) == ["", "retailer", "phone"]
    stranger = Identity.create("stranger").certificate
    with pytest.raises(PolicyError, match="pinned-peers"):
        policy.check_peers([*certificates[:2], stranger], 0, certificates[0])
    meet(identities["retailer"], identities["bank"], str(settings["peer-ca"]))
    with pytest.raises(ssl.SSLError):
        meet(Identity.create("stranger"), identities["bank"], str(settings["peer-ca"]))


def meet(client: Identity, server: Identity, authorities: str) -> None:
    handshake(server_context(server, (), authorities), client_context(client, (server.certificate,)))


@pytest.mark.parametrize(
    ("source", "fields"),
    [
        ("", "phone-authority.crt: got nothing, allowed: the certificate of one authority"),
        ("phone/phone.crt", "got the certificate of a party"),
        ("bank/bank-authority.crt", "got the authority of another party"),
        ("retailer/retailer-authority.crt", "got the authority of another party"),
        ("phone/phone.key", "phone-authority.crt: got .*, allowed: the certificate of one authority"),
    ],
)
def test_a_wrong_authority_is_refused(source: str, fields: str, made: Path, tmp_path: Path) -> None:
    kits = Path(shutil.copytree(made, tmp_path / "kits"))
    target = kits / "bank" / PEERS / "phone-authority.crt"
    target.unlink()
    if source:
        shutil.copy(kits / source, target)
    before = contents(kits)
    with refuses(KitError, fields):
        Kit.read(kits / "bank").pin_peers(kits / "bank")
    assert contents(kits) == before


def test_every_placeholder_is_filled(made: Path) -> None:
    for name in ("superlink", "bank"):
        for path, content in contents(made / name).items():
            assert not re.search(rb"(?<!\$)\{[a-z_]+\}", content), path
        unit = (made / name / f"{name}.service").read_text()
        assert f"kit start /var/lib/florilegium/{name} --unchecked\n" in unit


def test_only_the_superlinks_kit_starts_runs(made: Path) -> None:
    with refuses(ConfigError, "kit: got the kit of a party, allowed: the SuperLink's kit"):
        submit(made / "bank", [], "", None)
    with refuses(KitError, "kit: got .*kit.toml: No such file"):
        Kit.read(made)


def test_a_kit_names_no_file_outside_of_its_folder(tmp_path: Path) -> None:
    """The operator writes kit.toml, and the site's command writes files with the name in it."""
    provision(project(tmp_path), tmp_path)
    path = tmp_path / "north" / "kit.toml"
    path.write_text(path.read_text().replace('name = "north"', 'name = "../north"'))
    with refuses(KitError, "kit: got .*kit.toml: a wrong key"):
        Kit.read(tmp_path / "north")


@pytest.mark.parametrize(("status", "answer", "code"), [(200, claim.ACCEPTED, 0), (401, b"", claim.EXPIRED)])
def test_a_claim_is_renewed_before_flowers_script_runs(status: int, answer: bytes, code: int, tmp_path: Path) -> None:
    """The script of the kit runs Flower's script with its arguments, or ends at once if the claim has expired."""
    asked: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append((self.path, self.headers[claim.TOKEN]))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *arguments: object) -> None: ...

    script = tmp_path / "flwr-clientapp"
    script.write_text("import sys, time\ntime.sleep(1)\nprint(sys.argv[1:], flush=True)\n")
    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    options = ["--runtime-api-address", f"127.0.0.1:{server.server_port}", "--token", "t", "--insecure"]
    words = [sys.executable, claim.__file__, script, *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    server.shutdown()
    server.server_close()
    assert done.returncode == code
    assert asked[0] == (claim.PATH, "t")
    assert done.stdout == (f"{options}\n" if code == 0 else "")
    assert ("this machine is too slow for its SuperNodes" in done.stderr) == (code != 0)


@pytest.mark.parametrize(
    ("answers", "parent"), [([True, False, True, False, False], "os.wait()"), ([True] * 500, "os._exit(0)")]
)
def test_a_process_whose_task_or_parent_has_ended_does_not_wait_for_ever(answers: list[bool], parent: str) -> None:
    """A claim that is accepted again has not ended."""
    code = f"""
import os, threading
from simulations.kits import claim
ready, begun = os.pipe()
if os.fork():
    os.read(ready, 1)
    {parent}
else:
    answers = iter({answers})
    claim._send = lambda arguments: os.write(begun, b"1") and os.write(1, b".") and next(answers)
    claim.EVERY = claim.AFTER = 0.1
    threading.Thread(target=claim._renew, args=([],), daemon=True).start()
    threading.Event().wait()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr == f"WARNING: {claim.LEFT_BEHIND}\n"
    assert len(done.stdout) == len(answers) or "_exit" in parent


def test_the_start_of_a_kit_needs_no_pytorch() -> None:
    """The process that starts a SuperNode stays beside it, so it must be small."""
    code = "import sys, simulations.kits.start; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
