"""Tests of certificates and TLS contexts: which peers are accepted."""

import os
import pickle
import ssl
import stat
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from vertical.transport.identity import Identity, client_context, fingerprint, server_context

ALICE, BOB, EVE = (Identity.create(name) for name in ("alice", "bob", "eve"))


def handshake(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str = "party-1"
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Return both ends after their handshakes in memory."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = server.wrap_bio(up, down, server_side=True), client.wrap_bio(down, up, server_hostname=host)
    waiting = [ends[1], ends[0]]
    for _ in range(4):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    return ends


def test_both_ends_know_each_other() -> None:
    server, client = handshake(
        server_context(ALICE, [EVE.certificate, BOB.certificate]), client_context(BOB, [ALICE.certificate])
    )
    assert server.getpeercert(binary_form=True) == BOB.certificate
    assert client.getpeercert(binary_form=True) == ALICE.certificate
    assert server.version() == client.version() == "TLSv1.3"


def test_a_stranger_is_refused_on_either_side() -> None:
    for listening, calling in ((ALICE, EVE), (EVE, BOB)):
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(server_context(listening, [BOB.certificate]), client_context(calling, [ALICE.certificate]))


def test_a_client_without_a_certificate_is_refused() -> None:
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname = False
    bare.verify_mode = ssl.CERT_NONE
    with pytest.raises(ssl.SSLError, match="(?i)did not return a certificate"):
        handshake(server_context(ALICE, [BOB.certificate]), bare)


@pytest.mark.parametrize("side", ["server", "client"])
def test_nothing_older_than_tls_1_3(side: str) -> None:
    server, client = server_context(ALICE, [BOB.certificate]), client_context(BOB, [ALICE.certificate])
    other = client if side == "server" else server
    other.minimum_version = ssl.TLSVersion.TLSv1_2
    other.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        handshake(server, client)


def test_two_identities_of_one_name_are_two() -> None:
    one, other = Identity.create("p"), Identity.create("p")
    peers = [ALICE.certificate, one.certificate, other.certificate]
    for identity in (one, other):
        server, _ = handshake(server_context(ALICE, peers), client_context(identity, peers))
        assert server.getpeercert(binary_form=True) == identity.certificate
    assert fingerprint(one.certificate) != fingerprint(other.certificate)


def test_no_session_is_resumed_past_the_certificates() -> None:
    server, client = server_context(ALICE, [BOB.certificate]), client_context(BOB, [ALICE.certificate])
    _, end = handshake(server, client)
    with pytest.raises(ssl.SSLWantReadError):
        end.read()
    assert end.session is None or not end.session.has_ticket


def test_bytes_give_the_identity_back_and_words_hide_it() -> None:
    again = Identity.from_bytes(ALICE.to_bytes())
    assert again == ALICE == pickle.loads(pickle.dumps(ALICE))
    assert fingerprint(again.certificate) == fingerprint(ALICE.certificate)
    assert repr(ALICE) == f"Identity({fingerprint(ALICE.certificate)})"
    for wrong in (b"", b"-----BEGIN", ALICE.key, ALICE.chain, ALICE.chain + ALICE.key):
        with pytest.raises(ValueError, match="not an identity"):
            Identity.from_bytes(wrong)


def test_key_is_read_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[Path] = []
    load = ssl.SSLContext.load_cert_chain

    def watched(context: ssl.SSLContext, path: Path) -> None:
        paths.append(path.readlink())
        load(context, path)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", watched)
    monkeypatch.setattr(tempfile, "mkdtemp", None)
    opened = list(Path("/proc/self/fd").iterdir())
    client_context(ALICE, [BOB.certificate])
    assert paths == [Path("/memfd:identity (deleted)")]
    assert list(Path("/proc/self/fd").iterdir()) == opened


def test_the_key_lies_in_a_file_of_its_owner_only_and_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("vertical.transport.identity._IN_MEMORY", False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    modes: list[int] = []

    load = ssl.SSLContext.load_cert_chain

    def watched(context: ssl.SSLContext, path: Path) -> None:
        modes.extend(stat.S_IMODE(place.stat().st_mode) for place in (path, path.parent))
        load(context, path)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", watched)
    previous = os.umask(0)
    try:
        client_context(ALICE, [BOB.certificate])
        server_context(ALICE, [BOB.certificate])
        with pytest.raises(ssl.SSLError):
            client_context(Identity(b"", b"no chain", b"no key"), [])
    finally:
        os.umask(previous)
    assert modes == [0o600, 0o700] * 3
    assert not list(tmp_path.iterdir())


class Authority:
    """A consortium's authority, with one intermediate certificate between it and the parties' certificates."""

    def __init__(self, folder: Path, name: str = "") -> None:
        self.folder, self.file = folder, folder / "authority.pem"
        self.root, self.root_key = self._sign(f"root {name}", None, None)
        self.middle, self.middle_key = self._sign(f"middle {name}", self.root, self.root_key)
        self.file.write_bytes(self.root.public_bytes(Encoding.PEM))

    def _sign(
        self, name: str, issuer: x509.Certificate | None, issuer_key: ec.EllipticCurvePrivateKey | None, days: int = 10
    ) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = x509.CertificateBuilder(
            issuer.subject if issuer else subject,
            subject,
            key.public_key(),
            x509.random_serial_number(),
            now - timedelta(days=20),
            now + timedelta(days=days),
        )
        constraints = x509.BasicConstraints(ca=name.startswith(("root ", "middle ")), path_length=None)
        return builder.add_extension(constraints, critical=True).sign(issuer_key or key, hashes.SHA256()), key

    def party(self, name: str, days: int = 10, password: bytes | None = None) -> tuple[Path, Path]:
        """Write the files of a certificate (with the intermediate) and of its key."""
        certificate, key = self._sign(name, self.middle, self.middle_key, days)
        paths = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        paths[0].write_bytes(certificate.public_bytes(Encoding.PEM) + self.middle.public_bytes(Encoding.PEM))
        hidden = BestAvailableEncryption(password) if password else NoEncryption()
        paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, hidden))
        return paths


def test_a_consortiums_own_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one = Identity.from_files(*authority.party("one"))
    two = Identity.from_files(*authority.party("two", password=b"secret"), password=b"secret")
    file = str(authority.file)
    server, _ = handshake(server_context(one, [two.certificate], file), client_context(two, [one.certificate], file))
    assert server.getpeercert(binary_form=True) == two.certificate
    # a pinned certificate is accepted without its authority, regardless of the signer
    handshake(server_context(one, [two.certificate]), client_context(two, [one.certificate]))
    # with an authority set, even a pinned certificate needs its signature
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_context(one, [EVE.certificate], file), client_context(EVE, [one.certificate]))
    assert Identity.from_bytes(one.to_bytes()) == one


def test_bad_files_are_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (certificate, key), (_, other) = authority.party("one"), authority.party("two")
    tries: list[tuple[Callable[[], Identity], str]] = [
        (lambda: Identity.from_files(certificate, other), "does not belong to the first certificate"),
        (lambda: Identity.from_files(key, key), "contains no PEM certificate"),
        (lambda: Identity.from_files(certificate, certificate), "contains no readable PEM private key"),
        (lambda: Identity.from_files(*authority.party("old", days=-1)), "which is not now"),
        (
            lambda: Identity.from_files(*authority.party("hidden", password=b"secret")),
            "contains no readable PEM private key",
        ),
    ]
    for attempt, words in tries:
        with pytest.raises(ValueError, match=words):
            attempt()
