"""The doctor's findings for good and for bad prerequisites."""

import contextlib
import os
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from apps.config import parse_run_config
from apps.doctor import credentials, installation
from apps.doctor.command import cli
from apps.doctor.credentials import certificate, node_key
from apps.doctor.findings import WrongError
from apps.doctor.installation import NO_INSTALLATION, packages
from apps.doctor.network import reachable
from problems.data import load
from tests.refusals import refuses, states

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
NODE = "partition-id=0 num-partitions=3"


def script(name: str, folder: Path, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [DEPLOY / name, *arguments], cwd=folder, capture_output=True, text=True, env={**os.environ, "DAYS": "60"}
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a SuperLink's files in tls/, another authority's in other/, and a site's keys in keys/."""
    path = tmp_path_factory.mktemp("deploy")
    script("certificates.sh", path, "tls", "localhost", "127.0.0.1", "::1")
    script("certificates.sh", path, "other", "localhost")
    script("node-key.sh", path, "keys", "site-1")
    return path


def told(*arguments: str, code: int = 0) -> list[str]:
    """Return the lines of a command that exits with this code."""
    result = CliRunner().invoke(cli, list(arguments))
    assert result.exit_code == code, result.output
    return result.output.splitlines()


def test_a_new_server_certificate_keeps_the_authority(folder: Path, tmp_path: Path) -> None:
    script("certificates.sh", tmp_path, "tls", "localhost")
    first = [(tmp_path / "tls" / name).read_bytes() for name in ("ca.crt", "server.pem")]
    script("certificates.sh", tmp_path, "tls", "10.0.0.1")
    second = [(tmp_path / "tls" / name).read_bytes() for name in ("ca.crt", "server.pem")]
    assert first[0] == second[0]
    assert first[1] != second[1]
    for secret in ("ca.key", "server.key"):
        assert (tmp_path / "tls" / secret).stat().st_mode & 0o077 == 0


def test_the_scripts_refuse_what_they_cannot_use(tmp_path: Path) -> None:
    assert "usage" in script("certificates.sh", tmp_path, "tls", code=2)
    assert "got host 'a b'" in script("certificates.sh", tmp_path, "tls", "a b", code=2)
    assert "usage" in script("node-key.sh", tmp_path, "keys", code=2)
    assert "got site '../a'" in script("node-key.sh", tmp_path, "keys", "../a", code=2)
    script("node-key.sh", tmp_path, "keys", "a")
    assert "exists" in script("node-key.sh", tmp_path, "keys", "a", code=1)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "a.pub", "keys"]


def test_packages_that_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        installation, "requires", lambda name: ["numpy>=99", "no-such-package", 'ruff>=99; extra == "test"']
    )
    with pytest.raises(WrongError) as wrong:
        packages()
    (missing,) = wrong.value.also
    assert (wrong.value.key, wrong.value.got, wrong.value.allowed) == ("numpy", np.__version__, ">=99")
    assert (missing.key, missing.got) == ("no-such-package", "nothing")


def test_a_good_site(folder: Path, tmp_path: Path) -> None:
    node = f'{NODE} state-dir="{tmp_path}"'
    lines = told("site", "--node-config", node, "--auth-supernode-private-key", str(folder / "keys" / "site-1"))
    assert [line.split(":")[0] for line in lines] == [
        "ok     packages", *3 * ["ok     setting"], "ok     device", "ok     data", "ok     state-dir", "ok     key",
    ]  # fmt: skip
    assert lines[3] == f'ok     setting: state-dir = "{tmp_path}" (node config)'
    held = load(parse_run_config({}).data, 3).client(0)
    rows = f"{len(held):,} rows with labels, {len(held.positives):,} of them positive"
    assert lines[5].endswith(f"partition 0 of 3 of digits for fedx2: {rows}")


def test_settings_are_listed_with_their_places(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(f"[privacy]\nsecure-sum = true # ours\n[process]\nstate-dir = '{tmp_path}'")
    node = f'{NODE} site="a" site-config="{path}"'
    lines = told("site", "--node-config", node, "--run-config", 'strategy="coda" privacy.secure-sum=true')
    assert lines[4:7] == [
        f"ok     setting: secure-sum = true ({path})",
        f'ok     setting: state-dir = "{tmp_path}" ({path})',
        'ok     setting: site = "a" (node config; not a key of this project, without effect)',
    ]
    assert f"ok     state-dir: {tmp_path} can be written to" in lines


@pytest.mark.parametrize(("node", "run", "name", "words"), [
    ("num-partitions=3", "", "data", "node config: got num-partitions, without 'partition-id'"),
    ("partition-id=3 num-partitions=3", "", "data", "partition-id: got 3, allowed: 0 to num-partitions - 1 = 2"),
    (NODE, 'strategy="fedx9"', "data", "strategy: got 'fedx9'"),
    (NODE, 'dataset="csv" data-dir="/nowhere/a.csv"', "data", "/nowhere/a.csv"),
    (NODE, 'device="cuda"', "device", "PyTorch sees no CUDA device"),
    (f'{NODE} state-dir="/nowhere"', "", "state-dir", "got /nowhere, allowed: an existing folder"),
    (f"{NODE} pinned-peer=''", "", "configuration", "node config: got 'pinned-peer', allowed: 'pinned-peers'"),
    ("partition-id=", "", "configuration", "--node-config"),
    (NODE, "strategy=fedx2", "configuration", "--run-config"),
    (NODE, 'dataset = "csv"', "configuration", "from which flwr run does not read dataset"),
    (f"{NODE} secure-sum = true", "", "configuration", "from which flower-supernode does not read secure-sum"),
    (f'{NODE} site-config="/nowhere.toml"', "", "configuration", "site-config: got /nowhere.toml: No such file"),
    (NODE, "/nowhere/a.toml", "configuration", "--run-config: got '/nowhere/a.toml': No such file"),
])  # fmt: skip
def test_sites_hear_what_is_wrong(node: str, run: str, name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    lines = told("site", "--node-config", node, "--run-config", run, code=1)
    (wrong,) = [line for line in lines if line.startswith(f"wrong  {name}: ")]
    assert states(wrong, words)


def test_keys(folder: Path, tmp_path: Path) -> None:
    key = tmp_path / "site"
    key.write_bytes((folder / "keys" / "site-1").read_bytes())
    for mode in (0o644, 0o640):
        key.chmod(mode)
        with refuses(WrongError, rf"other users can read \(mode {mode:o}\), .*; run chmod 600"):
            node_key(key)
    with refuses(WrongError, "got a file without such a key .*, allowed: a private key in OpenSSH's format"):
        node_key(folder / "tls" / "server.key")
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "secret", "-f", tmp_path / "closed"], check=True)
    with refuses(WrongError, "without a passphrase"):
        node_key(tmp_path / "closed")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    with refuses(WrongError, "allowed: a key on a NIST curve"):
        node_key(tmp_path / "other")


# The connection to a SuperLink.


@contextlib.contextmanager
def listening(folder: Path | None) -> Iterator[str]:
    """Serve with the SuperLink's certificate; without a folder, accept the connection and hang up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    if folder is not None:
                        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                        context.load_cert_chain(folder / "server.pem", folder / "server.key")
                        context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            thread.join(10)


def test_the_superlink_is_reached(folder: Path) -> None:
    with listening(folder / "tls") as address:
        assert "with a certificate of" in reachable(address, folder / "tls" / "ca.crt")
    with listening(None) as address:
        assert "TLS was not tried" in reachable(address, None)
    with listening(folder / "other") as address:  # child processes reach the SuperLink by the loopback's name
        assert "with a certificate of" in reachable(address, folder / "other" / "ca.crt")


def test_the_superlink_of_another_authority_is_not(folder: Path) -> None:
    told = "TLS that fails .*(self-signed|issuer)"
    with listening(folder / "tls") as address, refuses(WrongError, told):
        reachable(address, folder / "other" / "ca.crt")


def test_a_certificate_for_another_name_is_not_the_superlink_s(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest: resolve("127.0.0.1", *rest))
    with listening(folder / "other") as address, refuses(WrongError, "Hostname mismatch"):
        reachable(address.replace("127.0.0.1", "superlink.example.org"), folder / "other" / "ca.crt")


def test_a_good_superlink(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    files = [f"--ssl-{option}={folder / 'tls' / name}" for option, name in (
        ("ca-certfile", "ca.crt"), ("certfile", "server.pem"), ("keyfile", "server.key"),
    )]  # fmt: skip
    places = [f"--port={port}", f"--database={tmp_path / 'state.db'}", f"--output-dir={tmp_path}"]
    monkeypatch.setenv(NO_INSTALLATION, "1")
    lines = told("superlink", *files, *places)
    assert len(lines) == 6
    assert all(line.startswith("ok     ") for line in lines)
    monkeypatch.delenv(NO_INSTALLATION)
    (wrong,) = [line for line in told("superlink", *files, *places, code=1) if line.startswith("wrong")]
    assert NO_INSTALLATION in wrong
    assert len(told("superlink", *files, *places, "--disable-runtime-dependency-installation")) == 5
    nowhere = told("superlink", "--port", "0", "--database", f"{tmp_path}/none/state.db", code=1)
    assert any(states(line, f"database: folder: got {tmp_path}/none, allowed: an existing folder") for line in nowhere)


def test_certificates_that_do_not_belong_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls, other = folder / "tls", folder / "other"
    with refuses(WrongError, "was not issued by"):
        certificate(tls / "server.pem", other / "ca.crt")
    with refuses(WrongError, r"server\.key: got a key that does not belong to the certificate"):
        certificate(tls / "server.pem", tls / "ca.crt", other / "server.key")
    assert certificate(tls / "server.pem", tls / "ca.crt", tls / "server.key").endswith("is valid for 59 days")
    monkeypatch.setattr(credentials, "WARNING_DAYS", 61)
    with refuses(WrongError, "is valid for 59 more days"):
        certificate(tls / "server.pem", tls / "ca.crt")


def test_files_and_ports_that_are_not_what_an_option_takes(folder: Path, tmp_path: Path) -> None:
    tls, closed = folder / "tls", tmp_path / "closed.key"
    with refuses(WrongError, r"server\.key: got a file that is not PEM .*, allowed: a certificate in PEM"):
        certificate(tls / "server.key", tls / "ca.crt")
    subprocess.run(
        ["openssl", "pkey", "-aes256", "-passout", "pass:secret", "-in", tls / "server.key", "-out", closed], check=True
    )
    with refuses(WrongError, r"closed\.key: got .*, allowed: a private key in PEM format without a passphrase"):
        certificate(tls / "server.pem", tls / "ca.crt", closed)
    with refuses(FileNotFoundError, r"none\.crt"):
        reachable("127.0.0.1:1", tmp_path / "none.crt")
    with refuses(WrongError, "allowed: host:port"):
        reachable("127.0.0.1:65536", None)


def test_a_sites_own_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ages = ",".join(["age", "label"]) + "\n" + "\n".join(f"{age},{age % 2}" for age in rng.integers(20, 80, 50))
    (tmp_path / "site.csv").write_text(ages)
    node = f'{NODE} data-path="{tmp_path / "site.csv"}" least-cell=1'
    run_config = 'dataset="csv" partition="own"'
    lines = told("site", "--node-config", node, "--run-config", run_config)
    (line,) = [line for line in lines if "data:" in line]
    assert line.startswith("ok     data: partition 0 of 3 of csv for fedx2: 40 rows with labels, ")
    assert line.endswith("of them positive, 10 more held out; positive labels: '1'; negative: '0'")
    gaps = [f"{place % 9 or 'NA'},20{place % 60:02}-01-01,{place % 2}" for place in range(50)]
    (tmp_path / "site.csv").write_text("age,when,label\n" + "\n".join(gaps))
    lines = told("site", "--node-config", node, "--run-config", f'{run_config} missing="mean"')
    (line,) = [line for line in lines if "data:" in line]
    assert re.search(r"negative: '0'; dates: 'when'; missing of 40 training rows: 'age' [3-6]$", line)
    (tmp_path / "site.csv").write_text(ages.replace(",0", ",B").replace(",1", ",M"))
    malignant = f'{run_config} positive-label="malignant"'
    (line,) = [one for one in told("site", "--node-config", node, "--run-config", malignant, code=1) if "data:" in one]
    assert states(line, "wrong  data: labels: got 'B', 'M', none of them in positive-label, allowed: 'malignant'")
    (tmp_path / "site.csv").write_text(ages)
    lines = told("site", "--node-config", node, "--run-config", f'{run_config} feature-columns="weight"', code=1)
    assert any("wrong  data: partition 0: " in line and states(line, "got no column 'weight'") for line in lines)


def test_a_party_s_own_file_and_what_its_owner_forbids(tmp_path: Path) -> None:
    (tmp_path / "party.csv").write_text("id,x,label\n" + "".join(f"{n},{n % 7},{n % 2}\n" for n in range(40)))
    node = f'{NODE} data-path="{tmp_path / "party.csv"}" state-dir="{tmp_path / "state"}" advertise="none"'
    run_config = 'dataset="csv" strategy="vfb2-sgd" vfb2.active-parties=2'
    for key, words in (
        ('labels="label"', "labels: got a run with label-column='label'"),
        ("fewest-rows=1", "fewest-rows: got a run of 32 rows and 8 test rows for 2 active parties"),
        ("fewest-columns=1", "fewest-columns: got a run in which too few of this party"),
    ):
        lines = told("site", "--node-config", node, "--run-config", run_config, code=1)
        assert any(states(line, f"wrong  data: {words}") for line in lines)
        node = f"{node} {key}"
    lines = told("site", "--node-config", node, "--run-config", run_config, code=1)
    (line,) = [line for line in lines if "data:" in line]
    assert line.startswith("ok     data: partition 0 of 3 of csv for vfb2-sgd: 32 rows with labels, ")
    assert not (tmp_path / "state").exists()
    for problem in ('"ridge"', '"softmax" vfb2.embedding=2'):
        lines = told("site", "--node-config", node, "--run-config", f"{run_config} vfb2.problem={problem}", code=1)
        assert any(line.endswith(" of csv for vfb2-sgd: 32 rows with labels") for line in lines)
    for log, words in (
        ("5", "configuration: node config: audit-log: got 5"),
        (f'"{tmp_path}/party.csv/log"', "audit-log: file: got /"),
    ):
        lines = told("site", "--node-config", f"{node} audit-log={log}", "--run-config", run_config, code=1)
        assert any(states(line, f"wrong  {words}") for line in lines)
    lines = told("site", "--node-config", f'{node} listen="0.0.0.0:7000"', "--run-config", run_config, code=1)
    assert any(states(line, "wrong  data: node config: got listen with advertise='none'") for line in lines)
    lines = told("site", "--node-config", f"{node} fewest-parties=4", "--run-config", run_config, code=1)
    assert any(states(line, "wrong  data: party 0: fewest-parties: got a run of 3 parties") for line in lines)
