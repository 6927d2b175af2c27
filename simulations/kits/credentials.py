"""Keys and certificates: a project's authority, the SuperLink's certificate, a site's node key, a party's certificate.

Private keys have mode 0600. No function replaces an existing private key.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from problems.files import write_atomic

NODE_KEY = "node"
CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
SERVER_CERTIFICATE, SERVER_KEY = "server.pem", "server.key"
# an authority is valid ten times as long as its certificates
_TIMES = 10
_SIGNING = {"key_cert_sign": True, "crl_sign": True}
_PROVING = {"digital_signature": True}
_USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def make_authority(certificate: Path, key: Path, name: str, days: int) -> None:
    """Make an authority: a key and a self-signed certificate that may sign others.

    Args:
        certificate: The file of the certificate (PEM).
        key: The file of the private key (PEM).
        name: The authority's name.
        days: The days for which its certificates are valid.
    """
    private = ec.generate_private_key(ec.SECP256R1())
    # a random part: of two authorities with one name, each would be tried as the issuer of the other's certificates
    subject = _name(name, f"authority of {name} {secrets.token_hex(8)}")
    builder = _builder(subject, subject, private, _TIMES * days, _SIGNING).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    _write(certificate, key, builder.sign(private, hashes.SHA256()), private)


def make_server_certificate(folder: Path, authority: Path, hosts: Sequence[str], days: int) -> None:
    """Make the SuperLink's key and certificate.

    Args:
        folder: The folder of the certificate and its key.
        authority: The folder of the authority.
        hosts: The names and addresses in the certificate.
        days: The days for which the certificate is valid.
    """
    signer = authority / CA_CERTIFICATE, authority / CA_KEY
    names = [_general_name(host) for host in hosts]
    _certify(folder / SERVER_CERTIFICATE, folder / SERVER_KEY, signer, _name("Florilegium", "SuperLink"), names, days)


def make_party_certificate(folder: Path, name: str, days: int) -> None:
    """Make a party's certificate, by which the other parties recognise it, and its authority unless it exists.

    Args:
        folder: The folder of the files.
        name: The party's name.
        days: The days for which the certificate is valid.
    """
    signer = folder / f"{name}-authority.crt", folder / f"{name}-authority.key"
    if not signer[0].exists():
        make_authority(*signer, name, days)
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    _certify(certificate, key, signer, _name(name, name), [x509.DNSName(name)], days, uses)


def make_node_key(path: Path, comment: str) -> None:
    """Make the key pair of a SuperNode, in OpenSSH's format: the private key, and the public key beside it.

    Args:
        path: The file of the private key. The public key's file has the suffix .pub.
        comment: The comment of the public key.
    """
    private = ec.generate_private_key(ec.SECP384R1())
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _refuse_existing(path)
    path.with_suffix(".pub").write_bytes(public + f" {comment}\n".encode())
    write_atomic(path, private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), private=True)


def _certify(
    certificate: Path,
    key: Path,
    signer: tuple[Path, Path],
    subject: x509.Name,
    names: Sequence[x509.GeneralName],
    days: int,
    uses: Sequence[x509.ObjectIdentifier] = (ExtendedKeyUsageOID.SERVER_AUTH,),
) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.load_pem_x509_certificate(signer[0].read_bytes())
    signing: Any = load_pem_private_key(signer[1].read_bytes(), None)
    signed = (
        _builder(subject, issuer.subject, private, days, _PROVING)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
        .sign(signing, hashes.SHA256())
    )
    _write(certificate, key, signed, private)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int, uses: dict[str, bool]
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks of other machines may differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.KeyUsage(**{**dict.fromkeys(_USES, False), **uses}), critical=True)
    )


def _name(organisation: str, name: str) -> x509.Name:
    oids = NameOID.ORGANIZATION_NAME, NameOID.COMMON_NAME
    return x509.Name([x509.NameAttribute(oid, text) for oid, text in zip(oids, (organisation, name), strict=True)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(certificate: Path, key: Path, signed: x509.Certificate, private: ec.EllipticCurvePrivateKey) -> None:
    _refuse_existing(key)
    write_atomic(key, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), private=True)
    write_atomic(certificate, signed.public_bytes(Encoding.PEM))


def _refuse_existing(key: Path) -> None:
    if key.exists():
        raise FileExistsError(f"{key} exists: a key is never replaced")
