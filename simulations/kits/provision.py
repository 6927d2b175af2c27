"""The writing of kits: one folder for the SuperLink, one for each site or party, and one for the project's authority.

A second call keeps all private keys and the owners' settings, adds the kits of new sites, and updates the other files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import tomli_w
from cryptography import x509

from apps.run_config.settings import ConfigError
from problems.files import make_folder, write_atomic
from simulations.arguments import nest
from simulations.kits.credentials import (
    CA_CERTIFICATE,
    CA_KEY,
    NODE_KEY,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    make_authority,
    make_server_certificate,
)
from simulations.kits.kit import KIT, PEERS, REGISTERED, RUN_FILE, SITE_FILE, Kit
from simulations.kits.names import AUTHORITY, SUPERLINK
from simulations.kits.project import IN_KITS, Project
from simulations.kits.site_file import write_settings
from vertical.transport.addresses import Address

FILES = Path(__file__).with_name("files")
STATE = "state"
# seconds for which a process stays between messages; it ends earlier if the run is over
STAY = 600
_HEAD = (
    "The settings of {name}, which only its owner decides. A line that begins with '# key =' shows a default; remove "
    "the '#' to set the key. Relative paths begin at this file's folder. The site refuses every run if a key is wrong. "
    "docs/site-settings.md and docs/site-policy.md explain the keys."
)


def provision(project: Project, out: Path, *, renew: bool = False) -> list[str]:
    """Write a project's kits, after all checks.

    Args:
        project: The project.
        out: The folder of the kits.
        renew: Whether to replace the SuperLink's key and certificate. The authority stays.

    Returns:
        A line for each kit, for the operator.

    Raises:
        ConfigError: The folder has kits of another project or in another order, or the SuperLink's certificate must be
            renewed.
    """
    kits = {SUPERLINK: _kit(project, SUPERLINK), **{name: _kit(project, name) for name in project.members}}
    faults = [*_check_existing(kits, out), *_check_certificate(project, out, renew)]
    if faults:
        raise ConfigError.join(faults)
    for folder in (AUTHORITY, *kits):
        make_folder(out / folder, private=True)
    authority = out / AUTHORITY
    if not (authority / CA_CERTIFICATE).exists():
        make_authority(authority / CA_CERTIFICATE, authority / CA_KEY, project.name, project.days)
    if renew:
        for name in (SERVER_CERTIFICATE, SERVER_KEY):
            (out / SUPERLINK / name).unlink(missing_ok=True)
    if not (out / SUPERLINK / SERVER_CERTIFICATE).exists():
        make_server_certificate(out / SUPERLINK, authority, project.certified, project.days)
    return [line for name, kit in kits.items() for line in _write(project, kit, out / name, out)]


def _kit(project: Project, name: str) -> Kit:
    port = project.first_port + list(project.members).index(name) if name in project.members else 0
    return Kit(
        kind="superlink" if name == SUPERLINK else "party" if project.vertical else "site",
        project=project.name,
        name=name,
        superlink=project.superlink,
        listen=f"127.0.0.1:{port}" if port else project.listens,
        members=list(project.members),
        days=project.days,
    )


def _check_existing(kits: dict[str, Kit], out: Path) -> Iterator[ConfigError]:
    """Yield the reasons why existing kits do not fit: sites keep their kind and partition id in a project's life."""
    for path in sorted(out.glob(f"*/{KIT}")):
        former, place = Kit.read(path.parent), path.parent.name
        kit = kits.get(place)
        if kit is None or former.project != kit.project:
            allowed = f"kits of {kits[SUPERLINK].project} that the project file lists"
            got = f"{place}, a kit of the project {former.project}"
            yield ConfigError("--out", got=got, allowed=allowed, hint="choose another folder, or remove the kit")
        elif kit.kind != former.kind:
            yield ConfigError(place, got=f"a {kit.kind}", allowed=f"a {former.kind}, as in {path}", hint="choose --out")
        elif kit.kind != SUPERLINK and kit.partition != former.partition:
            got, allowed = f"place {kit.partition + 1}", f"place {former.partition + 1}, as in {path}"
            yield ConfigError(place, got=got, allowed=allowed, hint="add new sites after the existing sites")


def _check_certificate(project: Project, out: Path, renew: bool) -> Iterator[ConfigError]:
    """Yield the reason why the SuperLink's certificate cannot be kept or made."""
    path, authority = out / SUPERLINK / SERVER_CERTIFICATE, out / AUTHORITY
    if path.exists() and not renew:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        known = {str(name.value) for name in names}
        if missing := [host for host in project.certified if _normal(host) not in known]:
            got, allowed = (
                f"a certificate without {', '.join(missing)}",
                "a certificate with all names of the SuperLink",
            )
            yield ConfigError(path, got=got, allowed=allowed, hint="add --renew to replace the certificate and its key")
    elif (authority / CA_CERTIFICATE).exists() and not (authority / CA_KEY).exists():
        hint = f"bring {authority / CA_KEY} back for this command"
        yield ConfigError(authority / CA_KEY, got="no file", allowed="the authority's private key", hint=hint)


def _normal(host: str) -> str:
    try:
        return str(ip_address(host))
    except ValueError:
        return host


def _write(project: Project, kit: Kit, folder: Path, out: Path) -> Iterator[str]:
    known = (folder / KIT).exists()
    changed = kit.write(folder)
    (folder / CA_CERTIFICATE).write_bytes((out / AUTHORITY / CA_CERTIFICATE).read_bytes())
    flat = {**project.run_config}
    if flat:
        (folder / RUN_FILE).write_text(tomli_w.dumps(nest(flat)), "utf-8")
    _write_files(project, kit, folder)
    where = f"{folder}: the kit of {'the SuperLink' if kit.kind == SUPERLINK else kit.name}"
    if kit.kind == SUPERLINK:
        make_folder(folder / REGISTERED, private=True)
        make_folder(folder / "results")
    else:
        for name in (STATE, *([PEERS] if kit.kind == "party" else [])):
            make_folder(folder / name, private=True)
        if not (folder / SITE_FILE).exists():
            text = write_settings(_settings(project, kit), _HEAD.format(name=kit.name), vertical=project.vertical)
            write_atomic(folder / SITE_FILE, text.encode(), private=True)
        if project.keys == IN_KITS:
            (public,) = kit.make_keys(folder)
            (out / SUPERLINK / REGISTERED / public.name).write_bytes(public.read_bytes())
    note = f"; contains private keys ({_private(folder)})" if _private(folder) else ""
    yield f"{where}{f'; updated: send {KIT} again' if known and changed else ''}{note}"


def _private(folder: Path) -> str:
    return ", ".join(name for name in (NODE_KEY, SERVER_KEY) if (folder / name).exists())


def _settings(project: Project, kit: Kit) -> dict[str, object]:
    values = {**project.members[kit.name], "state-dir": STATE, "stay": STAY}
    if kit.kind == "party":
        files = {"peer-cert": f"{kit.name}.crt", "peer-key": f"{kit.name}.key", "peer-ca": f"{kit.name}-peers.pem"}
        values = {**files, "fewest-parties": len(kit.members), **values}
    return values


def _write_files(project: Project, kit: Kit, folder: Path) -> None:
    """Write the scripts, the compose file, the systemd unit and the README."""
    superlink = kit.kind == SUPERLINK
    kind = "superlink" if superlink else "site"
    peers = (
        f", and its certificate.\n   Exchange `{kit.name}-authority.crt` with the other companies, put their files "
        f"into `{PEERS}`, and run\n   `florilegium kit pin .`: **compare each SHA-256 with its owner, by telephone**"
    )
    words = {
        "kind": "SuperLink" if superlink else "SuperNode",
        "project": kit.project,
        "name": kit.name,
        "compose_name": f"{kit.project}-{kit.name}".lower(),  # as the Compose Specification demands
        "superlink": kit.superlink,
        "listen": kit.listen,
        "port": str(Address("tcp", kit.listen).port),
        "names": ", ".join(f"`{name}.pub`" for name in kit.members),
        "peers_step": peers if kit.kind == "party" else "",
    }
    targets = {"start.sh": "start.sh", f"{kind}.compose.yml": "compose.yml", f"{kind}.README.md": "README.md"}
    targets["florilegium.service"] = f"{kit.name}.service"
    if superlink:
        targets["run.sh"] = "run.sh"
    for source, target in targets.items():
        text = re.sub(rf"\{{({'|'.join(words)})\}}", lambda found: words[found[1]], (FILES / source).read_text("utf-8"))
        (folder / target).write_text(text, "utf-8")
        if target.endswith(".sh"):
            (folder / target).chmod(0o700)
