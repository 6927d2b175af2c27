"""The start of a kit's SuperLink or SuperNode, after the doctor's checks, and the registration of sites' keys."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from logging import INFO, WARNING
from pathlib import Path
from types import FrameType

import tomli_w
from flwr.common import log

from problems.errors import NOTHING
from problems.files import make_folder
from problems.toml_files import read_toml
from simulations.kits import claim
from simulations.kits.credentials import CA_CERTIFICATE, NODE_KEY, SERVER_CERTIFICATE, SERVER_KEY
from simulations.kits.kit import REGISTERED, RUN_FILE, SITE_FILE, Kit
from simulations.kits.names import KitError
from vertical.transport.addresses import Address

ALREADY = "already in use"  # the error of Flower about a key that is registered
_WAIT, _RETRY, _LOOK = 120.0, 10.0, 2.0


def environment_of(folder: Path) -> dict[str, str]:
    """Return the environment variables of Flower's processes. Its files are in the kit's folder ``flwr``.

    Args:
        folder: The kit.
    """
    home = folder / "flwr"
    path = os.pathsep.join([str(home / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    return {**os.environ, **quiet, "FLWR_HOME": str(home), "PATH": path}


def put_scripts(folder: Path) -> None:
    """Write the scripts that keep claims, which run Flower's scripts of the same names.

    Args:
        folder: The kit. ``environment_of`` has the scripts on the path.
    """
    scripts = folder / "flwr" / "bin"
    make_folder(scripts, private=True)
    search = environment_of(folder)["PATH"].split(os.pathsep, 1)[1]
    for name in claim.COMMANDS:
        if own := shutil.which(name, path=search):
            text = f"#!{sys.executable}\nimport runpy, sys\nsys.argv.insert(1, {own!r})\n"
            (scripts / name).write_text(f"{text}runpy.run_path({claim.__file__!r}, run_name='__main__')\n", "utf-8")
            (scripts / name).chmod(0o700)


def connect(kit: Kit, folder: Path) -> None:
    """Name the connection to the SuperLink for ``flwr`` commands on the SuperLink's machine."""
    port = Address("tcp", kit.listen).port
    connection = {"address": f"127.0.0.1:{port}", "root-certificates": str(folder / CA_CERTIFICATE)}
    (folder / "flwr" / "config.toml").write_text(tomli_w.dumps({"superlink": {kit.project: connection}}), "utf-8")


def command_of(kit: Kit, folder: Path, host: str = "") -> list[str]:
    """Return the options that both the doctor and Flower's command accept.

    Args:
        kit: The kit's facts.
        folder: The kit.
        host: Another host at which the SuperLink listens. "": as in the kit.
    """
    listen = Address("tcp", kit.listen)
    if kit.kind == "superlink":
        files = {"ca-certfile": CA_CERTIFICATE, "certfile": SERVER_CERTIFICATE, "keyfile": SERVER_KEY}
        options = [word for name, file in files.items() for word in (f"--ssl-{name}", str(folder / file))]
        options += ["--host", host or listen.host, "--port", str(listen.port), "--database", str(folder / "state.db")]
        return [*options, "--disable-runtime-dependency-installation"]
    node = f'partition-id={kit.partition} num-partitions={len(kit.members)} site-config="{folder / SITE_FILE}"'
    options = ["--superlink", kit.superlink, "--root-certificates", str(folder / CA_CERTIFICATE)]
    return [*options, "--auth-supernode-private-key", str(folder / NODE_KEY), "--node-config", node]


def start(folder: Path, *, unchecked: bool = False, show: bool = False, host: str = "") -> int:
    """Start a kit's SuperLink or SuperNode, and return its exit code when it ends.

    Args:
        folder: The kit.
        unchecked: Whether to start without the doctor's checks.
        show: Whether to print the command of Flower instead of starting it.
        host: Another host at which the SuperLink listens. "": as in the kit.

    Raises:
        KitError: The folder is not a kit, or a party has not pinned its peers.
    """
    folder = folder.resolve()
    kit = Kit.read(folder)
    superlink = kit.kind == "superlink"
    options = command_of(kit, folder, host)
    added = ["--enable-supernode-auth"] if superlink else ["--port", str(Address("tcp", kit.listen).port)]
    command = ["flower-superlink" if superlink else "flower-supernode", *options, *added]
    if show:
        print(shlex.join(command))
        return 0
    put_scripts(folder)
    if superlink:
        connect(kit, folder)
    else:
        for path in kit.make_keys(folder):
            log(INFO, "public: %s", path)
        if kit.kind == "party":
            _check_pins(folder)
        _wait_for(kit.superlink)
    if not unchecked and (code := _check(kit, folder, options)):
        return code
    return _supervise(command, kit, folder)


def _check_pins(folder: Path) -> None:
    content = read_toml(folder / SITE_FILE)  # the site itself checks the file for each message
    if not content.get("vertical", content).get("pinned-peers"):
        allowed = "the pins of all other parties: without them the server could pretend to be a party"
        hint = f"put the other companies' authorities into {folder / 'peers'}, and run florilegium kit pin {folder}"
        raise KitError("pinned-peers", got=NOTHING, allowed=allowed, hint=hint)


def _check(kit: Kit, folder: Path, options: list[str]) -> int:
    """Run the doctor in a separate process, which leaves no PyTorch in memory. Returns its exit code."""
    words = [sys.executable, "-m", "apps.doctor", "superlink" if kit.kind == "superlink" else "site", *options]
    if kit.kind != "superlink" and (folder / RUN_FILE).exists():
        words += ["--run-config", str(folder / RUN_FILE)]
    done = subprocess.run(words, cwd=folder, check=False)
    if done.returncode:
        log(WARNING, "not started: the doctor's lines above that begin with 'wrong' have the remedy")
    return done.returncode


def _wait_for(address: str) -> None:
    """Wait until a process listens at an address, at most two minutes. The doctor then reports its absence."""
    place = Address("tcp", address)
    deadline = time.monotonic() + _WAIT
    while time.monotonic() < deadline:
        try:
            socket.create_connection((place.host, place.port), timeout=5).close()
        except OSError:
            time.sleep(1)
        else:
            return


class _Ended(Exception):  # noqa: N818, not an error
    """A signal that ends this process."""


def _end(number: int, _: FrameType | None) -> None:
    raise _Ended(number)


def _supervise(command: list[str], kit: Kit, folder: Path) -> int:
    """Run Flower's command. Start a SuperNode that has failed again: the SuperLink may not know its key yet."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    while True:
        process = subprocess.Popen(command, cwd=folder, env=environment_of(folder), stdin=subprocess.DEVNULL)
        try:
            if kit.kind == "superlink":
                _register_all(kit, folder, process)
            code = process.wait()
        except _Ended:
            process.terminate()
            with contextlib.suppress(_Ended):
                process.wait()
            return 0
        if kit.kind == "superlink" or code == 0:
            return code
        # most often [code: 2004] in Flower's text
        log(INFO, "next try in %g s. [code: 2004]: the SuperLink waits for %s.pub, or for a minute", _RETRY, kit.name)
        time.sleep(_RETRY)


def _register_all(kit: Kit, folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Register each public key in the folder of sites as soon as it is there, while the SuperLink runs."""
    _wait_for(f"127.0.0.1:{Address('tcp', kit.listen).port}")
    registered: Mapping[Path, bytes] = {}
    while process.poll() is None:
        files = {path: path.read_bytes() for path in sorted((folder / REGISTERED).glob("*.pub"))}
        for path, content in files.items():
            if registered.get(path) != content:
                _register(kit, folder, path)
        registered = files
        time.sleep(_LOOK)


def _register(kit: Kit, folder: Path, path: Path) -> None:
    if path.stem not in kit.members:
        log(WARNING, "%s: not registered, since %s lists no such site", path, folder / "kit.toml")
        return
    words = ["flwr", "supernode", "register", str(path), kit.project, "--name", path.stem]
    done = subprocess.run(words, env=environment_of(folder), capture_output=True, text=True, check=False)
    if done.returncode == 0:
        log(INFO, "registered %s", path.stem)
    elif ALREADY not in done.stdout + done.stderr:
        log(WARNING, "%s: not registered: %s", path, " ".join((done.stderr or done.stdout).split()))
