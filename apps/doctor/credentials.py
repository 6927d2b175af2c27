"""Checks of a SuperLink's certificate and of a SuperNode's private key."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from ipaddress import IPv4Address
from pathlib import Path
from typing import TypeVar

from apps.doctor.findings import WrongError

WARNING_DAYS = 30
LOOPBACK = IPv4Address("127.0.0.1")

T = TypeVar("T")


def _load(path: Path, load: Callable[[bytes], T], got: str, allowed: str, hint: str) -> T:
    text = path.read_bytes()
    try:
        return load(text)
    except (ValueError, TypeError) as error:  # TypeError: the key has a passphrase
        raise WrongError(path, got=f"{got} ({error})", allowed=allowed, hint=hint) from None


def certificate(path: Path, authority: Path, key: Path | None = None) -> str:
    """Check a SuperLink's certificate: its authority, its key, the address for child processes, and the days left.

    Args:
        path: The certificate, a PEM file.
        authority: The authority's certificate, a PEM file.
        key: The certificate's private key without a passphrase. None: not checked.

    Raises:
        WrongError: A file is not PEM, the files do not belong together, the certificate does not name 127.0.0.1, or a
            certificate expires in less than 30 days.
        OSError: A file cannot be read.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509 import ExtensionNotFound, IPAddress, SubjectAlternativeName, load_pem_x509_certificate

    not_pem, hint = "a file that is not PEM", "choose a PEM file"
    own, root = (
        _load(file, load_pem_x509_certificate, not_pem, "a certificate in PEM format", hint)
        for file in (path, authority)
    )
    renew_both = "make both files with deploy/certificates.sh"
    try:
        own.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        got = f"a certificate that was not issued by {authority}"
        raise WrongError(path, got=got, allowed="a certificate of this authority", hint=renew_both) from None
    if key is not None:
        allowed = "a private key in PEM format without a passphrase"
        private = _load(key, lambda text: load_pem_private_key(text, None), not_pem, allowed, hint)
        if private.public_key() != own.public_key():
            got = f"a key that does not belong to the certificate {path}"
            raise WrongError(key, got=got, allowed="the key of this certificate", hint=renew_both)
    try:
        names = own.extensions.get_extension_for_class(SubjectAlternativeName).value.get_values_for_type(IPAddress)
    except ExtensionNotFound:
        names = []
    if LOOPBACK not in names:
        got = f"a certificate that does not name {LOOPBACK}, the address that the SuperLink's child processes use"
        allowed = f"{LOOPBACK} among the addresses of subjectAltName"
        raise WrongError(path, got=got, allowed=allowed, hint="make a certificate with deploy/certificates.sh")
    days = (min(own.not_valid_after_utc, root.not_valid_after_utc) - datetime.now(UTC)).days
    if days < WARNING_DAYS:
        got, allowed = f"a certificate that is valid for {days} more days", f"at least {WARNING_DAYS} days"
        raise WrongError(path, got=got, allowed=allowed, hint="make a new certificate with deploy/certificates.sh")
    return f"{path} is valid for {days:,} days"


def node_key(path: Path) -> str:
    """Check that a SuperNode's private key is usable, and that only its owner can read it.

    Raises:
        WrongError: The file is not a key on a NIST curve in OpenSSH's format, has a passphrase, or other users can
            read it.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    hint = "make a key with deploy/node-key.sh"
    allowed = "a private key in OpenSSH's format without a passphrase"
    key = _load(path, lambda text: load_ssh_private_key(text, None), "a file without such a key", allowed, hint)
    if not isinstance(key, EllipticCurvePrivateKey):
        raise WrongError(path, got="a key of another kind", allowed="a key on a NIST curve", hint=hint)
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        got = f"a key that other users can read (mode {mode:o})"
        raise WrongError(path, got=got, allowed="mode 600", hint=f"run chmod 600 {path}")
    return f"{path} is a key on {key.curve.name}"
