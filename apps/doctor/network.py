"""Checks of connections and ports.

They send only a TLS handshake and, if environment variables name a proxy, one request.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from apps.doctor.findings import WrongError
from apps.doctor.proxies import SECONDS, through_proxy

HIGHEST_PORT = 2**16 - 1


def reachable(address: str, authority: Path | None) -> str:
    """Check that a SuperLink listens and, with an authority, that its certificate is valid for this host name.

    Args:
        address: ``host:port``. An IPv6 host is in brackets.
        authority: The PEM file of the certificate's authority. None: TLS is not tried.

    Raises:
        WrongError: The address is malformed, nothing answers within five seconds, or TLS fails.
        OSError: The authority's file cannot be read.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > HIGHEST_PORT:
        raise WrongError(
            "--superlink", got=repr(address), allowed="host:port", hint="use the address for flower-supernode"
        )
    name, hint = host.strip("[]"), "see docs/deployment.md"
    if authority is not None:
        authority.read_bytes()  # raises OSError here, so an unreadable file is not reported as a failed connection
    if answered := through_proxy(name, int(port), authority):
        return answered
    try:
        with socket.create_connection((name, int(port)), timeout=SECONDS) as connection:
            if authority is None:
                return f"{address} listens; TLS was not tried without --root-certificates"
            context = ssl.create_default_context(cafile=str(authority))
            with context.wrap_socket(connection, server_hostname=name) as secure:
                return f"{address} listens, with a certificate of {authority} ({secure.version()})"
    except ssl.SSLError as error:
        got = f"TLS that fails ({getattr(error, 'verify_message', '') or error.reason or error})"
        raise WrongError(address, got=got, allowed=f"a certificate of {authority}", hint=hint) from None
    except OSError as error:
        got = f"no connection ({error.strerror or error})"
        raise WrongError(address, got=got, allowed="a listening SuperLink", hint=hint) from None


def port_free(host: str, port: int) -> str:
    """Check that a SuperLink's port is free.

    Raises:
        WrongError: The port is in use, or ``host`` is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        got = f"{host}:{port} ({error.strerror or error})"
        raise WrongError(
            "port", got=got, allowed="a free port of this machine", hint="set --port to another port"
        ) from None
    return f"{host}:{port} is free"
