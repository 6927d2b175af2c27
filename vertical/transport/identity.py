"""A party's certificate and key, and TLS 1.3 contexts that accept only its peers' certificates."""

import os
import secrets
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_END = b"-----END PRIVATE KEY-----\n"
_OPEN_FILES = Path("/proc/self/fd")
_IN_MEMORY = hasattr(os, "memfd_create") and _OPEN_FILES.is_dir()


@dataclass(frozen=True)
class Identity:
    """The certificate and key by which a party proves its identity to its peers.

    Attributes:
        certificate: The certificate (DER) that the peers pin.
        chain: The certificate (PEM), followed by the certificates between it and an authority.
        key: The private key (PEM, PKCS #8, not encrypted).
    """

    certificate: bytes
    chain: bytes
    key: bytes

    def __repr__(self) -> str:
        return f"Identity({fingerprint(self.certificate)})"

    @classmethod
    def create(cls, name: str, *, days: int = 365) -> Self:
        """Return a new P-256 key with a self-signed certificate.

        The certificate is valid from a day ago, since the clocks of the parties may differ.

        Args:
            name: The name in the certificate, cut to 40 characters. Peers do not rely on the name.
            days: The days from now until the certificate expires.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        # a random part, since certificates with equal names would be tried as each other's issuers
        label = f"{name[:40]} {secrets.token_hex(8)}"
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, label)])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .sign(key, hashes.SHA256())
        )
        return cls._of([certificate], key)

    @classmethod
    def from_files(cls, certificate: str | Path, key: str | Path, password: bytes | None = None) -> Self:
        """Read a certificate and its private key from PEM files.

        Args:
            certificate: The file of the certificate, followed by the certificates between it and an authority.
            key: The file of the private key.
            password: The password of the key file. None: the file is not encrypted.

        Raises:
            ValueError: A file is not PEM, the key belongs to another certificate, or the certificate is not valid now.
        """
        try:
            chain = x509.load_pem_x509_certificates(Path(certificate).read_bytes())
        except ValueError as error:
            raise ValueError(f"{certificate} contains no PEM certificate: {error}") from error
        try:
            private = load_pem_private_key(Path(key).read_bytes(), password)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{key} contains no readable PEM private key: {error}") from error
        if chain[0].public_key() != private.public_key():
            raise ValueError(f"the key in {key} does not belong to the first certificate in {certificate}")
        first, last, now = chain[0].not_valid_before_utc, chain[0].not_valid_after_utc, datetime.now(UTC)
        if not first <= now <= last:
            raise ValueError(f"{certificate} is valid from {first} to {last}, which is not now ({now}): renew it")
        return cls._of(chain, private)

    @classmethod
    def _of(cls, chain: Sequence[x509.Certificate], key: PrivateKeyTypes) -> Self:
        return cls(
            chain[0].public_bytes(Encoding.DER),
            b"".join(part.public_bytes(Encoding.PEM) for part in chain),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )

    def to_bytes(self) -> bytes:
        """Return the key and the certificates in PEM. The party must keep the key secret."""
        return self.key + self.chain

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the result of `to_bytes`.

        Raises:
            ValueError: The bytes are not an identity.
        """
        key, end, chain = data.partition(_END)
        try:
            return cls._of(x509.load_pem_x509_certificates(chain), load_pem_private_key(key + end, None))
        except (ValueError, TypeError) as error:
            raise ValueError(f"these {len(data)} bytes are not an identity: {error}") from error


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate (DER), in hexadecimal."""
    return sha256(certificate).hexdigest()


def read_certificates(path: str | Path) -> tuple[bytes, ...]:
    """Return the certificates (DER) in a PEM file.

    Args:
        path: The file.

    Raises:
        ValueError: The file cannot be read, or contains no certificate.
    """
    try:
        found = x509.load_pem_x509_certificates(Path(path).read_bytes())
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: {error}") from error
    return tuple(certificate.public_bytes(Encoding.DER) for certificate in found)


def server_context(identity: Identity, peers: Sequence[bytes], authority: str | None = None) -> ssl.SSLContext:
    """Return the TLS 1.3 context of the listening side. The connecting side must present a trusted certificate.

    Args:
        identity: This party's certificate and key.
        peers: The trusted certificates (DER), if there is no authority.
        authority: The file of the trusted authority (PEM). None: no authority.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # no tickets, with which a later connection could skip the certificates
    context.num_tickets = 0
    return _mutual(context, identity, peers, authority)


def client_context(identity: Identity, peers: Sequence[bytes], authority: str | None = None) -> ssl.SSLContext:
    """Return the TLS 1.3 context of the connecting side. The listening side must present a trusted certificate.

    Host names are not compared.

    Args:
        identity: This party's certificate and key.
        peers: The trusted certificates, see `server_context`.
        authority: The file of the trusted authority, see `server_context`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # the entire certificate is pinned or signed by the authority, so its host name does not matter
    context.check_hostname = False
    return _mutual(context, identity, peers, authority)


def _mutual(
    context: ssl.SSLContext, identity: Identity, peers: Sequence[bytes], authority: str | None
) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    if authority is not None:
        context.load_verify_locations(cafile=authority)
    else:
        # each pinned certificate is trusted, regardless of its signer
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        for peer in peers:
            context.load_verify_locations(cadata=peer)
    with _in_file(identity.key + identity.chain) as path:
        context.load_cert_chain(path)
    return context


@contextmanager
def _in_file(content: bytes) -> Iterator[Path]:
    """Yield a file that only this process's user can read, since the ssl module reads keys only from files.

    The file is in memory if the system has such files. Otherwise it exists on disk for a moment.
    """
    if _IN_MEMORY:
        with os.fdopen(os.memfd_create("identity"), "wb") as file:
            file.write(content)
            file.flush()
            yield _OPEN_FILES / str(file.fileno())
        return
    with tempfile.TemporaryDirectory(prefix="vfl-") as folder:  # mode 0700
        path = Path(folder) / "identity.pem"
        path.touch(mode=0o600)
        path.write_bytes(content)
        yield path
