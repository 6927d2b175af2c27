"""A party's certificate and key, and the TLS 1.3 contexts that accept its peers' certificates only."""

import secrets
import ssl
import tempfile
from collections.abc import Sequence
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


@dataclass(frozen=True)
class Identity:
    """The certificate and key by which a party proves its identity to its peers.

    Attributes:
        certificate: (DER) the one that the peers pin.
        chain: (PEM) the certificate, then those between it and an authority.
        key: (PEM, PKCS #8, not encrypted) the private key.
    """

    certificate: bytes
    chain: bytes
    key: bytes

    def __repr__(self) -> str:
        return f"Identity({fingerprint(self.certificate)})"

    @classmethod
    def create(cls, name: str, *, days: int = 365) -> Self:
        """Make a P-256 key with a certificate it signs itself, valid from a day ago (clocks differ).

        Args:
            name: Stands in the certificate, at most 40 characters of it; peers do not rely on it.
            days: From now until the certificate ends.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        # Of two certificates with one name, each would be tried as the other's issuer.
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
        """Read PEM files: the certificate with those between it and an authority, and its private key.

        Raises:
            ValueError: Not PEM, the key is another certificate's, or the certificate is not valid today.
        """
        try:
            chain = x509.load_pem_x509_certificates(Path(certificate).read_bytes())
        except ValueError as error:
            raise ValueError(f"{certificate} holds no PEM certificate: {error}") from error
        try:
            private = load_pem_private_key(Path(key).read_bytes(), password)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{key} holds no PEM private key this can read: {error}") from error
        if chain[0].public_key() != private.public_key():
            raise ValueError(f"the key in {key} is not that of the first certificate in {certificate}")
        first, last, now = chain[0].not_valid_before_utc, chain[0].not_valid_after_utc, datetime.now(UTC)
        if not first <= now <= last:
            raise ValueError(f"{certificate} is valid from {first} to {last}, which is not now ({now})")
        return cls._of(chain, private)

    @classmethod
    def _of(cls, chain: Sequence[x509.Certificate], key: PrivateKeyTypes) -> Self:
        return cls(
            chain[0].public_bytes(Encoding.DER),
            b"".join(part.public_bytes(Encoding.PEM) for part in chain),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )

    def to_bytes(self) -> bytes:
        """Key and certificates in PEM; a party must keep them secret."""
        return self.key + self.chain

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` gave.

        Raises:
            ValueError: It is something else.
        """
        key, end, chain = data.partition(_END)
        try:
            return cls._of(x509.load_pem_x509_certificates(chain), load_pem_private_key(key + end, None))
        except (ValueError, TypeError) as error:
            raise ValueError(f"these {len(data)} bytes are no identity: {error}") from error


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate (DER), hexadecimal."""
    return sha256(certificate).hexdigest()


def server_context(identity: Identity, peers: Sequence[bytes], authority: str | None = None) -> ssl.SSLContext:
    """Return TLS 1.3 for the side that listens; the other must show a certificate that is vouched for.

    Args:
        peers: (DER) the certificates that vouch for themselves, where there is no authority.
        authority: (PEM) the file of the one that vouches for all; None: there is none.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # tickets would let a later connection skip the certificates
    context.num_tickets = 0
    return _mutual(context, identity, peers, authority)


def client_context(identity: Identity, peers: Sequence[bytes], authority: str | None = None) -> ssl.SSLContext:
    """Return TLS 1.3 for the side that connects, with the same demands; it does not compare host names.

    Args:
        peers: As for `server_context`.
        authority: Likewise.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # a certificate is pinned whole, whatever host name it bears
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
        # each pinned certificate vouches for itself, whoever signed it
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        for peer in peers:
            context.load_verify_locations(cadata=peer)
    # the ssl module reads keys from files only, so one exists for a moment
    with tempfile.TemporaryDirectory(prefix="vfl-") as folder:  # mode 0700
        path = Path(folder) / "identity.pem"
        path.touch(mode=0o600)
        path.write_bytes(identity.key + identity.chain)
        context.load_cert_chain(path)
    return context
