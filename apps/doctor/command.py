"""The commands ``florilegium doctor site`` and ``florilegium doctor superlink``.

Their options have the same names as the options of ``flower-supernode``, ``flower-superlink`` and ``flwr run``, so a
user can try a command line before the real start. The checks leave no files on the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from apps.doctor.credentials import certificate, node_key
from apps.doctor.findings import Finding, find
from apps.doctor.network import HIGHEST_PORT, port_free, reachable
from apps.doctor.proxies import loopback, proxy_variables

cli = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


def site_findings(
    node_config: str, run_config: str, superlink: str, authority: Path | None, key: Path | None
) -> Iterator[Finding]:
    """Run the checks of a site, one after the other.

    Args:
        node_config: ``key=value`` pairs or a TOML file, in the form that ``flower-supernode`` accepts.
        run_config: ``key=value`` pairs or a TOML file, in the form that ``flwr run`` accepts. Empty: the defaults.
        superlink: ``host:port``. Empty: not checked.
        authority: The PEM file of the authority of the SuperLink's certificate. None: TLS is not tried.
        key: The file of the SuperNode's private key. None: not checked.

    Yields:
        The outcome of each check as soon as it is known, and each setting of the site. A config that cannot be read
        ends the checks.
    """
    from flwr.app import Context, RecordDict

    from apps.doctor.installation import packages, writable
    from apps.doctor.site_data import audit_log, data, device
    from apps.run_config.pairs import format_value, parse_for_command
    from apps.run_config.settings import ConfigError
    from apps.sites.site_config import list_settings
    from apps.sites.state_store import STATE_DIR

    yield find("packages", packages)
    try:
        node = parse_for_command("--node-config", node_config, "flower-supernode")
        run = parse_for_command("--run-config", run_config, "flwr run")
        settings = list_settings(node)
    except ConfigError as error:
        yield Finding("configuration", False, str(error))
        return
    for name, value, origin in settings:
        yield Finding("setting", True, f"{name} = {format_value(value)} ({origin})")
    node = {name: value for name, value, _ in settings}
    context = Context(run_id=0, node_id=0, node_config=dict(node), state=RecordDict(), run_config=dict(run))
    yield find("device", lambda: device(context))
    yield find("data", lambda: data(context))
    if "audit-log" in node:
        yield find("audit-log", lambda: audit_log(context))
    if STATE_DIR in node:
        yield find(STATE_DIR, lambda: writable(Path(str(node[STATE_DIR])).expanduser()))
    if key is not None:
        yield find("key", lambda: node_key(key))
    if superlink:
        yield find("superlink", lambda: reachable(superlink, authority))
    if proxy_variables():
        yield find("proxy", lambda: loopback("http", superlink.rpartition(":")[0].strip("[]")))


Folder = Annotated[Path | None, typer.Option(help="folder of the run directories (output-dir)")]
File = Annotated[Path | None, typer.Option(help="the same file as for flower-supernode")]
LinkFile = Annotated[Path | None, typer.Option(help="the same file as for flower-superlink")]


@cli.command()
def site(
    node_config: Annotated[str, typer.Option(help="the same text as for flower-supernode")],
    run_config: Annotated[str, typer.Option(help="the same text as for flwr run")] = "",
    superlink: Annotated[str, typer.Option(help="host:port")] = "",
    root_certificates: File = None,
    auth_supernode_private_key: File = None,
) -> None:
    """Check a SuperNode's requirements: packages, device, data, state-dir, key, connection to the SuperLink."""
    report(site_findings(node_config, run_config, superlink, root_certificates, auth_supernode_private_key))


@cli.command()
def superlink(
    ssl_ca_certfile: LinkFile = None,
    ssl_certfile: LinkFile = None,
    ssl_keyfile: LinkFile = None,
    host: Annotated[str, typer.Option(help="the address on which it listens")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="the port on which it listens", min=0, max=HIGHEST_PORT)] = 8000,
    database: LinkFile = None,
    output_dir: Folder = None,
    disable_runtime_dependency_installation: Annotated[
        bool, typer.Option("--disable-runtime-dependency-installation", help="the same flag as for flower-superlink")
    ] = False,
) -> None:
    """Check a SuperLink's requirements: packages, installation, certificate, port, database and results folders."""
    from apps.doctor.installation import no_installation, packages, writable

    def findings() -> Iterator[Finding]:
        yield find("packages", packages)
        if not disable_runtime_dependency_installation:
            yield find("installation", lambda: no_installation(os.environ))
        if ssl_certfile is not None and ssl_ca_certfile is not None:
            yield find("certificate", lambda: certificate(ssl_certfile, ssl_ca_certfile, ssl_keyfile))
        else:
            missing = "--ssl-certfile or --ssl-ca-certfile is missing: make both files with deploy/certificates.sh"
            yield Finding("certificate", False, missing)
        yield find("port", lambda: port_free(host, port))
        if proxy_variables():
            yield find("proxy", lambda: loopback("https"))
        if database is not None:
            yield find("database", lambda: writable(database.expanduser().absolute().parent))
        if output_dir is not None:
            yield find("output-dir", lambda: writable(output_dir.expanduser()))

    report(findings())


def report(findings: Iterator[Finding]) -> None:
    """Print each finding as soon as it is known.

    Raises:
        typer.Exit: A finding is wrong. The exit code is 1.
    """
    good = True
    for finding in findings:
        print(finding, flush=True)
        good &= finding.good
    if not good:
        raise typer.Exit(1)
