"""What ``python -m apps.doctor`` finds wrong: a line each, beside those of what is in order."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from apps.doctor import NO_INSTALLATION, packages, port_free, reachable
from tests.apps.errors.row import Row, called

CERTIFICATES, KEYS = "deploy/certificates.sh", "deploy/node-key.sh"
Key = ec.EllipticCurvePrivateKey


@cache
def key(name: str) -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def certificate(name: str, issuer: str, days: int, address: str | None = "127.0.0.1") -> bytes:
    now = datetime.datetime.now(datetime.UTC)
    subject, by = (x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)]) for text in (name, issuer))
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by)
        .public_key(key(name).public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )
    if address is not None:
        named = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        made = made.add_extension(named, critical=False)
    return made.sign(key(issuer), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def private(held: Any, *, ssh: bool = False) -> bytes:
    form = serialization.PrivateFormat.OpenSSH if ssh else serialization.PrivateFormat.PKCS8
    found: bytes = held.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return found


def readable(content: bytes, mode: int) -> Any:
    def write(path: Path) -> None:
        path.write_bytes(content)
        path.chmod(mode)

    return write


FILES = {
    "ca.crt": certificate("ca", "ca", 400),
    "server.pem": certificate("server", "ca", 400),
    "server.key": private(key("server")),
    "other.crt": certificate("other", "other", 400),
    "other.key": private(key("other")),
    "short.pem": certificate("server", "ca", 5),
    "away.pem": certificate("server", "ca", 400, "10.0.0.1"),
    "nameless.pem": certificate("server", "ca", 400, None),
    "site.key": readable(private(key("site"), ssh=True), 0o644),
    "edwards.key": readable(private(ed25519.Ed25519PrivateKey.generate(), ssh=True), 0o600),
}


def superlink(name: str, *options: str, **told: Any) -> Row:
    """What a SuperLink needs; its port is any."""
    arguments = ("apps.doctor", "superlink", "--port", "0", *options)
    return Row(name, arguments, files=FILES, longest=900, **told)


def links(name: str, file: str, held: str, authority: str = "ca.crt", **told: Any) -> Row:
    options = (
        "--ssl-certfile",
        f"{{tmp}}/{file}",
        "--ssl-keyfile",
        f"{{tmp}}/{held}",
        "--ssl-ca-certfile",
        f"{{tmp}}/{authority}",
    )
    return superlink(name, *options, **told)


def site(name: str, *options: str, **told: Any) -> Row:
    arguments = ("apps.doctor", "site", "--node-config", "partition-id=0 num-partitions=3", *options)
    return Row(name, arguments, files=FILES, longest=900, **told)


@contextlib.contextmanager
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def taken(tmp: Path) -> None:
    with listening() as port:
        port_free("127.0.0.1", port)


def without_tls(tmp: Path) -> None:
    import threading

    (tmp / "ca.crt").write_bytes(FILES["ca.crt"])  # type: ignore[arg-type]
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            connection.recv(1)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            reachable(f"127.0.0.1:{server.getsockname()[1]}", tmp / "ca.crt")
        finally:
            thread.join()


def unmet(tmp: Path) -> None:
    from unittest.mock import patch

    with patch("apps.doctor.requires", return_value=["torch<1", "no-such-package"]):
        packages()


def uninstalled(tmp: Path) -> None:
    from unittest.mock import patch

    with patch("apps.doctor.PROJECT", "no-such-project"):
        packages()


ROWS = [
    called(
        "project that is not installed",
        uninstalled,
        says=("no-such-project", "is not installed", "constraints.txt", "pip install -e ."),
    ),
    called(
        "packages of other versions",
        unmet,
        says=("torch", "no-such-package is missing", "allowed: <1", "pip install -e ."),
    ),
    called("port that is taken", taken, says=("127.0.0.1:", "Address already in use", "a free port", "--port")),
    called(
        "SuperLink without TLS",
        without_tls,
        says=("127.0.0.1:", "TLS fails", "a certificate of {tmp}/ca.crt", "docs/deployment.md"),
    ),
    superlink(
        "installation at every run",
        says=(
            "installation",
            f"{NO_INSTALLATION} is not set to 1",
            "flower-superlink",
            "--disable-runtime-dependency-installation",
        ),
        environment={NO_INSTALLATION: "true"},
    ),
    superlink("no certificate", says=("certificate", "no --ssl-certfile", "--ssl-ca-certfile", CERTIFICATES)),
    superlink(
        "folder of a database that is not there",
        "--database",
        "{tmp}/none/state.db",
        says=("database", "got {tmp}/none", "a folder that exists", "make it"),
    ),
    links(
        "certificate of another authority",
        "server.pem",
        "server.key",
        "other.crt",
        says=("certificate", "{tmp}/server.pem was not issued", "the same authority", CERTIFICATES),
    ),
    links(
        "key of another certificate",
        "server.pem",
        "other.key",
        says=("certificate", "{tmp}/other.key is not the key", "the key of its certificate", CERTIFICATES),
    ),
    links(
        "certificate that child processes cannot use",
        "away.pem",
        "server.key",
        says=("certificate", "{tmp}/away.pem does not name 127.0.0.1", "subjectAltName", CERTIFICATES),
    ),
    links(
        "certificate without names",
        "nameless.pem",
        "server.key",
        says=("certificate", "{tmp}/nameless.pem does not name 127.0.0.1", "subjectAltName", CERTIFICATES),
    ),
    links(
        "certificate that ends soon",
        "short.pem",
        "server.key",
        says=("certificate", "valid for 4 more days", "expected 30 at least", CERTIFICATES),
    ),
    site(
        "key of another format",
        "--auth-supernode-private-key",
        "{tmp}/server.key",
        says=("{tmp}/server.key", "is no private key", "OpenSSH's format", KEYS),
    ),
    site(
        "key on another curve",
        "--auth-supernode-private-key",
        "{tmp}/edwards.key",
        says=("{tmp}/edwards.key", "no key on a NIST curve", "NIST curve", KEYS),
    ),
    site(
        "key that others can read",
        "--auth-supernode-private-key",
        "{tmp}/site.key",
        says=("{tmp}/site.key", "mode 644", "can be read by others", "chmod 600"),
    ),
    site(
        "address that is none",
        "--superlink",
        "localhost",
        says=("--superlink", "got 'localhost'", "host:port", "as to flower-supernode"),
    ),
    site(
        "address where nobody listens",
        "--superlink",
        "127.0.0.1:1",
        says=("superlink", "127.0.0.1:1 cannot be reached", "a SuperLink that listens", "docs/deployment.md"),
    ),
    site(
        "run config of a site",
        "--run-config",
        "strategy=fedx2",
        says=("--run-config", "'strategy=fedx2'", "key=value", "docs/configuration.md"),
    ),
]
