"""``python -m apps.doctor``: checks, one by one, what a site or a SuperLink needs before a federation starts.

Options are spelled as those of ``flower-supernode``, ``flower-superlink`` and ``flwr run``, so that a command line can
be tried before it is run. Only a TLS handshake is sent, and nothing stays on the disk.
"""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, requires, version
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import typer
from flwr.app import Context, RecordDict

from apps.run_config.pairs import parse_pairs
from apps.run_config.settings import ConfigError
from apps.run_directory.versions import NAME
from apps.sites.state_store import STATE_DIR
from payloads.flower_internals import NO_INSTALLATION
from problems.errors import NOTHING, InputError

SECONDS = 5.0
WARNING_DAYS = 30
LOOPBACK = IPv4Address("127.0.0.1")
HIGHEST_PORT = 2**16 - 1
INSTALL = "pip install -e . -c constraints.txt"

T = TypeVar("T")

cli = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


class WrongError(InputError):
    """A check that failed."""


class Finding(NamedTuple):
    """The outcome of one check."""

    name: str
    good: bool
    text: str

    def __str__(self) -> str:
        return f"{'ok   ' if self.good else 'wrong'}  {self.name}: {self.text}"


def find(name: str, check: Callable[[], str]) -> Finding:
    """Run a check and record its outcome.

    Args:
        check: returns what it saw, or raises WrongError, ValueError or OSError with what is wrong; others pass through.
    """
    try:
        return Finding(name, True, check())
    except (WrongError, ValueError, OSError) as error:
        return Finding(name, False, " ".join(str(error).split()))


def packages() -> str:
    """Check that every package the project requires is installed, in a version it allows."""
    from packaging.requirements import Requirement

    try:
        wanted = [Requirement(line) for line in requires(NAME) or []]
    except PackageNotFoundError:
        got = "a package that is not installed here"
        raise WrongError(NAME, got=got, allowed="an installation", hint=INSTALL) from None
    needed = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    bad = []
    for one in needed:
        try:
            found = version(one.name)
        except PackageNotFoundError:
            found = NOTHING
        if found == NOTHING or not one.specifier.contains(found, prereleases=True):
            allowed = str(one.specifier) or "any version"
            bad.append(WrongError(one.name, got=found, allowed=allowed, hint=INSTALL))
    if bad:
        raise WrongError.join(bad)
    return f"{len(needed)} of {len(needed)}, flwr {version('flwr')}, torch {version('torch')}"


def data(context: Context) -> str:
    """Check both configs, and that the site's data can be read, as the handshake does.

    Raises:
        ConfigError: one of the configs is wrong.
        DataError: the data cannot be read.
        WrongError: the site's own file has several labels, none of them positive.
    """
    from apps.client_app import report_of, run_config, site_of

    config = run_config(context)
    report = report_of(context, config)
    held_out = 0 if report.held_out_counts is None else int(report.held_out_counts.sum())
    place = f"partition {context.node_config['partition-id']} of {context.node_config['num-partitions']}"
    text = f"{place} of {config.data.dataset} for {config.run.strategy}"
    # a party of a vertical run reports no counts, but its data must be read here
    negatives, positives = (
        report.class_counts if report.class_counts is not None else site_of(context, config).class_counts
    )
    text = f"{text}: {negatives + positives:,} rows with labels, {positives:,} of them positive"
    text = f"{text}, {held_out:,} more held out" if held_out else text
    if report.negative_labels is None:
        return text
    negative, positive = (", ".join(map(repr, values)) or "none" for values in report.label_values)
    if len(report.label_values[0]) > 1 and positive == "none":
        raise WrongError(
            "labels",
            got=f"{negative}, none of them in positive-label",
            allowed=f"{config.data.positive_label or '1'!r} among them, where there is more than one",
            hint="write them as the other sites do, or set positive-label",
        )
    return f"{text}; positive labels: {positive}; negative: {negative}"


def device(context: Context) -> str:
    """Check that the run's device is available.

    Raises:
        ConfigError: the run config is wrong.
        ValueError: it asks for CUDA, which is not available.
    """
    import torch

    from apps.client_app import run_config
    from apps.sites.resources import device_of

    config = run_config(context)
    found = device_of(config.training)
    name = torch.cuda.get_device_name() if found.type == "cuda" else f"{config.training.torch_threads} threads"
    return f"{found.type} ({name}) for device={config.training.device!r}"


def writable(folder: Path) -> str:
    """Check that a folder exists and can be written to, by a file that is removed at once.

    Raises:
        WrongError: there is no such folder.
        OSError: it cannot be written to.
    """
    if not folder.is_dir():
        raise WrongError("folder", got=folder, allowed="one that exists", hint="make it, or give another")
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(b"0")
    return f"{folder} can be written to"


def _load(path: Path, load: Callable[[bytes], T], got: str, allowed: str, hint: str) -> T:
    text = path.read_bytes()
    try:
        return load(text)
    except (ValueError, TypeError) as error:  # TypeError: there is a passphrase
        raise WrongError(path, got=f"{got} ({error})", allowed=allowed, hint=hint) from None


def certificate(path: Path, authority: Path, key: Path | None = None) -> str:
    """Check a SuperLink's certificate: authority, key, the address that child processes use, and days left.

    Args:
        path: the certificate, a PEM file.
        authority: that of the authority, a PEM file too.
        key: the certificate's private key, without a passphrase; None: it is not checked.

    Raises:
        WrongError: a file is not PEM, they do not belong together, 127.0.0.1 is not named, or one ends in less than 30
            days.
        OSError: a file cannot be read.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509 import ExtensionNotFound, IPAddress, SubjectAlternativeName, load_pem_x509_certificate

    other, way_out = "another content", "give such a file"
    shown, root = (
        _load(file, load_pem_x509_certificate, other, "a certificate in PEM", way_out) for file in (path, authority)
    )
    both = "make both with deploy/certificates.sh"
    try:
        shown.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        got = f"a certificate that was not issued by {authority}"
        raise WrongError(path, got=got, allowed="the same authority", hint=both) from None
    if key is not None:
        allowed = "a private key in PEM without a passphrase"
        private = _load(key, lambda text: load_pem_private_key(text, None), other, allowed, way_out)
        if private.public_key() != shown.public_key():
            got = f"another key than that of {path}"
            raise WrongError(key, got=got, allowed="the key of its certificate", hint=both)
    try:
        names = shown.extensions.get_extension_for_class(SubjectAlternativeName).value.get_values_for_type(IPAddress)
    except ExtensionNotFound:
        names = []
    if LOOPBACK not in names:
        got = f"a certificate that does not name {LOOPBACK}, where the SuperLink's own child processes reach it"
        allowed = "it among subjectAltName's addresses"
        raise WrongError(path, got=got, allowed=allowed, hint="make one with deploy/certificates.sh")
    days = (min(shown.not_valid_after_utc, root.not_valid_after_utc) - datetime.now(UTC)).days
    if days < WARNING_DAYS:
        got, way_out = f"a certificate that is valid for {days} more days", "make a new one with deploy/certificates.sh"
        raise WrongError(path, got=got, allowed=f"{WARNING_DAYS} at least", hint=way_out)
    return f"{path} is valid for {days:,} days"


def node_key(path: Path) -> str:
    """Check that a SuperNode's private key can be read, and by its owner alone.

    Raises:
        WrongError: it is no key on a NIST curve in OpenSSH's format, has a passphrase, or others can read it.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    way_out = "make one with deploy/node-key.sh"
    allowed = "a private key in OpenSSH's format without a passphrase"
    key = _load(path, lambda text: load_ssh_private_key(text, None), "no such key", allowed, way_out)
    if not isinstance(key, EllipticCurvePrivateKey):
        raise WrongError(path, got="a key of another kind", allowed="one on a NIST curve", hint=way_out)
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        got = f"a key that others can read (mode {mode:o})"
        raise WrongError(path, got=got, allowed="mode 600", hint=f"chmod 600 {path}")
    return f"{path} is a key on {key.curve.name}"


def reachable(address: str, authority: Path | None) -> str:
    """Check that a SuperLink listens and, given an authority, that it issued the certificate for this name.

    Args:
        address: ``host:port``, an IPv6 address in brackets.
        authority: the PEM file of its certificate; None: TLS is not tried.

    Raises:
        WrongError: the address is malformed, nothing answers within five seconds, or TLS fails.
        OSError: the authority's file cannot be read.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > HIGHEST_PORT:
        raise WrongError("--superlink", got=repr(address), allowed="host:port", hint="give it as to flower-supernode")
    name, way_out = host.strip("[]"), "see docs/deployment.md"
    if authority is not None:
        authority.read_bytes()  # A file that cannot be read is no fault of the connection.
    try:
        with socket.create_connection((name, int(port)), timeout=SECONDS) as connection:
            if authority is None:
                return f"{address} listens; TLS was not tried without --root-certificates"
            context = ssl.create_default_context(cafile=str(authority))
            with context.wrap_socket(connection, server_hostname=name) as secure:
                return f"{address} listens, with a certificate of {authority} ({secure.version()})"
    except ssl.SSLError as error:
        got = f"TLS that fails ({getattr(error, 'verify_message', '') or error.reason or error})"
        raise WrongError(address, got=got, allowed=f"a certificate of {authority}", hint=way_out) from None
    except OSError as error:
        got = f"no connection ({error.strerror or error})"
        raise WrongError(address, got=got, allowed="a SuperLink that listens", hint=way_out) from None


def port_free(host: str, port: int) -> str:
    """Check that a SuperLink's port is free.

    Raises:
        WrongError: it is in use, or ``host`` is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        got = f"{host}:{port} ({error.strerror or error})"
        raise WrongError("port", got=got, allowed="a free port of this machine", hint="give another --port") from None
    return f"{host}:{port} is free"


def no_installation(environment: Mapping[str, str]) -> str:
    """Check that Flower does not install the project's dependencies anew for every run.

    Raises:
        WrongError: the variable that forbids it is not "1" in ``environment``.
    """
    got = environment.get(NO_INSTALLATION, NOTHING)
    if got != "1":  # as Flower reads it: "true" is not enough
        hint = "give flower-superlink --disable-runtime-dependency-installation"
        raise WrongError(NO_INSTALLATION, got=got, allowed="1, or every run installs all packages anew", hint=hint)
    return f"{NO_INSTALLATION} is set"


def site_findings(
    node_config: str, run_config: str, superlink: str, authority: Path | None, key: Path | None
) -> Iterator[Finding]:
    """Make the checks of a site, one after the other.

    Args:
        node_config: ``key=value`` pairs or a TOML file, as ``flower-supernode`` takes them.
        run_config: likewise, as ``flwr run`` takes them; empty: the defaults.
        superlink: ``host:port``; empty: not checked.
        key: the SuperNode's private key; None: not checked.

    Yields:
        Each finding as soon as it is known; after a config that cannot be read there are no more.
    """
    yield find("packages", packages)
    try:
        node, run = parse_pairs("--node-config", node_config), parse_pairs("--run-config", run_config)
    except ConfigError as error:
        yield Finding("configuration", False, str(error))
        return
    context = Context(run_id=0, node_id=0, node_config=dict(node), state=RecordDict(), run_config=dict(run))
    yield find("device", lambda: device(context))
    yield find("data", lambda: data(context))
    if STATE_DIR in node:
        yield find(STATE_DIR, lambda: writable(Path(str(node[STATE_DIR])).expanduser()))
    if key is not None:
        yield find("key", lambda: node_key(key))
    if superlink:
        yield find("superlink", lambda: reachable(superlink, authority))


Folder = Annotated[Path | None, typer.Option(help="folder of the run directories (output-dir)")]
File = Annotated[Path | None, typer.Option(help="as flower-supernode takes it")]
LinkFile = Annotated[Path | None, typer.Option(help="as flower-superlink takes it")]


@cli.command()
def site(
    node_config: Annotated[str, typer.Option(help="as flower-supernode takes it")],
    run_config: Annotated[str, typer.Option(help="as flwr run takes it")] = "",
    superlink: Annotated[str, typer.Option(help="host:port")] = "",
    root_certificates: File = None,
    auth_supernode_private_key: File = None,
) -> None:
    """Check what a SuperNode needs: packages, device, data, state-dir, key, connection to the SuperLink."""
    report(site_findings(node_config, run_config, superlink, root_certificates, auth_supernode_private_key))


@cli.command()
def superlink(
    ssl_ca_certfile: LinkFile = None,
    ssl_certfile: LinkFile = None,
    ssl_keyfile: LinkFile = None,
    host: Annotated[str, typer.Option(help="where it is to listen")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="where it is to listen", min=0, max=HIGHEST_PORT)] = 8000,
    database: LinkFile = None,
    output_dir: Folder = None,
    disable_runtime_dependency_installation: Annotated[
        bool, typer.Option("--disable-runtime-dependency-installation", help="as flower-superlink takes it")
    ] = False,
) -> None:
    """Check what a SuperLink needs: packages, installation, certificate, port, folders for database and results."""

    def findings() -> Iterator[Finding]:
        yield find("packages", packages)
        if not disable_runtime_dependency_installation:
            yield find("installation", lambda: no_installation(os.environ))
        if ssl_certfile is not None and ssl_ca_certfile is not None:
            yield find("certificate", lambda: certificate(ssl_certfile, ssl_ca_certfile, ssl_keyfile))
        else:
            missing = "no --ssl-certfile and --ssl-ca-certfile: make them with deploy/certificates.sh"
            yield Finding("certificate", False, missing)
        yield find("port", lambda: port_free(host, port))
        if database is not None:
            yield find("database", lambda: writable(database.expanduser().absolute().parent))
        if output_dir is not None:
            yield find("output-dir", lambda: writable(output_dir.expanduser()))

    report(findings())


def report(findings: Iterator[Finding]) -> None:
    """Print each finding as it comes.

    Raises:
        typer.Exit: with code 1, after the last finding, if one is wrong.
    """
    good = True
    for finding in findings:
        print(finding, flush=True)
        good &= finding.good
    if not good:
        raise typer.Exit(1)
