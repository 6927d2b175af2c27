"""The doctor connects as a SuperNode does: through the proxies in the environment variables."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from apps.doctor import proxies
from apps.doctor.findings import WrongError
from apps.doctor.network import reachable
from apps.doctor.proxies import loopback, proxy_variables
from tests.refusals import refuses

VARIABLES = ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"]


class Health(BaseHTTPRequestHandler):
    """A server that answers as a SuperLink's health check, and as a proxy that forwards nothing."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 403)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in filter(lambda name: name.lower().endswith("_proxy"), list(os.environ)):
        monkeypatch.delenv(name)
    monkeypatch.setattr(proxies, "SECONDS", 0.3)


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler] = Health) -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"localhost:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("name", VARIABLES)
def test_a_dead_proxy_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as address, socket.create_server(("127.0.0.1", 0)) as silent, serving() as other:
        assert "listens" in reachable(address, None)
        for proxy in ("127.0.0.1:9", f"127.0.0.1:{silent.getsockname()[1]}", other, "socks5://127.0.0.1:9"):
            monkeypatch.setenv(name, proxy if "://" in proxy else f"http://{proxy}")
            with refuses(WrongError, f"with the variables {name}, .*export no_proxy=localhost,127.0.0.1 "):
                reachable(address, None)
        monkeypatch.setenv("no_proxy", "example.org, localhost")
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        assert "listens" in reachable(address, None)


def test_variables_for_another_protocol_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_variables() == []
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("grpc_proxy", "http://127.0.0.1:9")
    assert proxy_variables() == ["https_proxy"]
    with serving() as address:
        assert "listens" in reachable(address, None)
    assert "do not apply to 127.0.0.1" in loopback("http")
    with refuses(WrongError, "export no_proxy=127.0.0.1,localhost "):
        loopback("https")


def test_a_proxy_that_alone_reaches_the_superlink_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forwards(Health):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "http://superlink.invalid:8000/health" else 403)
            self.end_headers()

    with serving(Forwards) as proxy:
        monkeypatch.setenv("http_proxy", f"http://{proxy}")
        assert "answers through the proxy of http_proxy" in reachable("superlink.invalid:8000", None)


@pytest.mark.parametrize(
    ("no_proxy", "good"), [("", False), ("127.0.0.0/8", False), ("localhost", False), ("127.0.0.1", True), ("*", True)]
)
def test_the_machine_s_own_processes_reach_each_other(
    no_proxy: str, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", no_proxy)
    with contextlib.nullcontext() if good else refuses(WrongError, "no_proxy=host,127.0.0.1,localhost"):
        loopback("http", "host")
