"""A kit: the folder of a SuperLink or of a site. Its file ``kit.toml`` has the facts that its commands need."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Literal, Self

import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import ValidationError

from payloads.settings import Settings, setting
from problems.errors import NOTHING
from problems.files import write_atomic
from problems.toml_files import read_toml, reason_of
from simulations.kits.credentials import NODE_KEY, make_node_key, make_party_certificate
from simulations.kits.names import AddressText, KitError, Name

KIT, SITE_FILE, RUN_FILE, PEERS, REGISTERED = "kit.toml", "site.toml", "run.toml", "peers", "sites"
_AGAIN = "write the kit again with florilegium provision"


class Kit(Settings):
    """The facts of a kit.

    Attributes:
        members: The names of all sites or parties, in the order of their partition ids.
    """

    kind: Literal["superlink", "site", "party"] = setting("The kind of the kit.", ...)
    project: Name = setting("The project's name.", ...)
    name: Name | Literal["superlink"] = setting("The site's name.", ...)
    superlink: AddressText = setting("The address at which the sites reach the SuperLink.", ...)
    listen: AddressText = setting("The address at which this machine's process listens.", ...)
    members: list[Name] = setting("The names of all sites or parties.", ...)
    days: int = setting("The days for which a party's certificate is valid.", 365, ge=1, le=3650)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a kit.

        Raises:
            KitError: The folder is not a kit.
        """
        path = folder / KIT
        try:
            return cls.model_validate(read_toml(path))
        except (OSError, ValidationError, ValueError) as error:
            reason = "a wrong key" if isinstance(error, ValidationError) else reason_of(error)
            raise KitError("kit", got=f"{path}: {reason}", allowed="the folder of a kit", hint=_AGAIN) from None

    def write(self, folder: Path) -> bool:
        """Write the kit's file. Returns whether the file has changed."""
        path, text = folder / KIT, tomli_w.dumps(self.model_dump(by_alias=True))
        changed = not path.exists() or path.read_text("utf-8") != text
        if changed:
            write_atomic(path, text.encode())
        return changed

    @property
    def partition(self) -> int:
        """The site's partition id."""
        return self.members.index(self.name)

    @property
    def peers(self) -> list[str]:
        """The other parties."""
        return [name for name in self.members if name != self.name]

    def make_keys(self, folder: Path) -> list[Path]:
        """Make the site's private keys if they are missing.

        Args:
            folder: The kit.

        Returns:
            The public files that others need: the node's public key, and a party's authority.
        """
        public = folder / f"{self.name}.pub"
        if not (folder / NODE_KEY).exists():
            make_node_key(folder / NODE_KEY, self.name)
            (folder / NODE_KEY).with_suffix(".pub").replace(public)
        if self.kind != "party":
            return [public]
        if not (folder / f"{self.name}.crt").exists():
            make_party_certificate(folder, self.name, self.days)
        return [public, folder / f"{self.name}-authority.crt"]

    def pin_peers(self, folder: Path) -> dict[str, str]:
        """Accept the other parties by their authorities, which are in the kit's folder ``peers``.

        Args:
            folder: The kit. Its settings file gets the pins, and the file of all authorities is written.

        Returns:
            The SHA-256 of each peer's authority, by the peer's name.

        Raises:
            KitError: A file is missing, is not the certificate of an authority, or two files are equal.
        """
        from simulations.kits.site_file import set_keys

        pins: dict[str, str] = {}
        certificates = []
        own = (folder / f"{self.name}-authority.crt").read_bytes()
        for peer in self.peers:
            path = folder / PEERS / f"{peer}-authority.crt"
            certificate = _read_authority(path)
            digest = sha256(certificate.public_bytes(Encoding.DER)).hexdigest()
            if certificate == x509.load_pem_x509_certificate(own) or digest in pins.values():
                got = "the authority of another party"
                raise KitError(path, got=got, allowed=f"the authority of {peer}", hint=f"ask {peer} for its file")
            pins[peer] = digest
            certificates.append(certificate.public_bytes(Encoding.PEM))
        write_atomic(folder / f"{self.name}-peers.pem", b"".join(certificates))
        text = " ".join(f"{peer}={digest}" for peer, digest in pins.items())
        set_keys(folder / SITE_FILE, {"pinned-peers": text, "fewest-parties": len(self.members)})
        return pins


def _read_authority(path: Path) -> x509.Certificate:
    allowed = "the certificate of one authority that is valid now (PEM)"
    hint = f"ask the company for its {path.name}, and put it into {path.parent}"
    try:
        certificates = x509.load_pem_x509_certificates(path.read_bytes())
    except FileNotFoundError:
        raise KitError(path, got=NOTHING, allowed=allowed, hint=hint) from None
    except (ValueError, OSError) as error:
        raise KitError(path, got=str(error), allowed=allowed, hint=hint) from None
    certificate = certificates[0]
    try:
        signs = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        signs = False
    faults = {
        "several certificates": len(certificates) > 1,
        "the certificate of a party": not signs,
        "an expired certificate": certificate.not_valid_after_utc < datetime.now(UTC),
    }
    for got, wrong in faults.items():
        if wrong:
            raise KitError(path, got=got, allowed=allowed, hint=hint)
    return certificate
