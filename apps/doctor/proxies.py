"""Checks of the proxies in environment variables such as ``https_proxy``.

Flower's processes use httpx, which reads these variables as urllib does. The variables apply to connections to the
SuperLink, and also to connections between Flower's processes on 127.0.0.1. If a connection through the proxy fails, a
SuperNode retries for ever without an error.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from pathlib import Path
from typing import Literal

from apps.doctor.findings import WrongError

SECONDS = 5.0
_NAMES = ("http_proxy", "https_proxy", "all_proxy")
_LOOPBACK = "127.0.0.1"
# the status and the beginning of the content of an HTTP answer, or the text of an error
Answer = tuple[int, bytes] | str


def proxy_variables() -> list[str]:
    """Return the names of this process's environment variables that set proxies, in lower or upper case."""
    return sorted(name for name, value in os.environ.items() if name.lower() in _NAMES and value)


def through_proxy(host: str, port: int, authority: Path | None) -> str:
    """Check that the SuperLink answers through the proxies, by a comparison with a direct connection.

    Args:
        host: The SuperLink's host. An IPv6 address is without brackets.
        port: The SuperLink's port.
        authority: The PEM file of the certificate's authority. None: without TLS.

    Returns:
        "" if the proxies make no difference; otherwise a note that the SuperLink answers only through the proxy.

    Raises:
        WrongError: The SuperLink does not answer through the proxy.
    """
    if not proxy_variables():
        return ""
    netloc = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    direct, proxied = (_ask(netloc, authority, environment=environment) for environment in (False, True))
    if direct == proxied:
        return ""
    # the SuperLink answers with 200 and no content; without TLS, other content may be the proxy's own error page
    if isinstance(direct, str) and not isinstance(proxied, str) and (authority or proxied == (200, b"")):
        return f"{netloc} answers through the proxy of {', '.join(proxy_variables())}"
    answer = proxied if isinstance(proxied, str) else f"status {proxied[0]} from another server"
    raise _wrong(netloc, f"no connection through the proxy ({answer})", host)


def loopback(scheme: Literal["http", "https"], host: str = "") -> str:
    """Check that the proxies do not apply to 127.0.0.1, where Flower's processes connect to each other.

    The function listens on a port of 127.0.0.1, sends a request there, and checks that the connection arrives.

    Args:
        scheme: The protocol between the processes.
        host: The SuperLink's host, for the hint.

    Returns:
        A note that the variables do not apply to 127.0.0.1.

    Raises:
        WrongError: The processes would use a proxy.
    """
    import httpx

    reason = "a connection to the proxy"
    with socket.create_server((_LOOPBACK, 0)) as server:
        server.setblocking(False)
        try:
            with httpx.Client(timeout=0.5, verify=False) as client:
                client.get(f"{scheme}://{_LOOPBACK}:{server.getsockname()[1]}")
        except httpx.HTTPError:
            pass
        except (ValueError, ImportError, httpx.InvalidURL) as error:  # a variable that httpx cannot use
            reason = str(error)
        with contextlib.suppress(BlockingIOError):
            server.accept()[0].close()
            return f"{', '.join(proxy_variables())} do not apply to {_LOOPBACK}"
    raise _wrong(_LOOPBACK, reason, host)


def _ask(netloc: str, authority: Path | None, *, environment: bool) -> Answer:
    import httpx

    try:
        verify = ssl.create_default_context(cafile=str(authority)) if authority else False
        with httpx.Client(verify=verify, timeout=SECONDS, trust_env=environment) as client:
            answer = client.get(f"{'https' if authority else 'http'}://{netloc}/health")
            return answer.status_code, answer.content[:200]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, ImportError, OSError) as error:
        return str(error) or type(error).__name__


def _wrong(key: str, got: str, host: str) -> WrongError:
    names = ",".join(dict.fromkeys(name for name in (host, _LOOPBACK, "localhost") if name))
    allowed = f"a working connection with the variables {', '.join(proxy_variables())}, which Flower's processes use"
    hint = f"export no_proxy={names} before you start Flower's processes; it lists names and addresses, not ranges"
    return WrongError(key, got=got, allowed=allowed, hint=hint)
