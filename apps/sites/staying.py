"""The forwarding of messages to the resident: a process that stays at a site between messages (`apps.resident`).

Each message's process imports this module, so its own imports must be quick.
"""

import contextlib
import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from flwr.app import Context, Message

from payloads.flower_internals import own_identity
from problems.files import make_private, socket_base
from problems.toml_files import read_toml

STAY, SITE_CONFIG = "stay", "site-config"


def staying_seconds(node: Mapping[str, Any]) -> float:
    """Return how many seconds a site's resident waits for another message. 0: the site has no resident.

    An invalid value also counts as 0. `apps.sites.site_config.effective` reports it as an error.

    Args:
        node: The node config, with or without the keys of its file.
    """
    value = node.get(STAY, look_up(node, "process", STAY))
    return float(value) if type(value) in (int, float) and 0 < value < float("inf") else 0.0


def look_up(node: Mapping[str, Any], table: str, key: str) -> Any:
    """Return the value of a key in the file that a node config names, without any check. None if it is missing.

    Args:
        node: The node config.
        table: The table of the key.
        key: The key.
    """
    try:
        content = read_toml(Path(str(node[SITE_CONFIG])))
    except (KeyError, OSError, ValueError):
        return None  # `apps.sites.site_config.effective` explains the error
    inside = content.get(table)
    return inside[key] if isinstance(inside, Mapping) and key in inside else content.get(key)


def ask(message: Message, context: Context, seconds: float) -> Message:
    """Let the resident answer a message. Start the resident if it does not run.

    Args:
        message: The message.
        context: The node's context. Its state is replaced by the state after the answer.
        seconds: The idle time after which the resident ends.

    Raises:
        PermissionError: The folder of the socket belongs to another user.
        RuntimeError: The resident has ended without an answer.
        Exception: The ClientApp's exception.
    """
    path = _socket_of(context, seconds)
    with contextlib.closing(_connect(path) or _start(path, seconds)) as connection:
        try:
            connection.send((message, context, own_identity()))
            reply, state = connection.recv()
        except (EOFError, OSError):
            raise RuntimeError("the process that stays at this site has ended without an answer") from None
    context.state = state  # also after an error, for budgets that were spent until then
    if isinstance(reply, Exception):
        raise reply
    answer: Message = reply
    return answer


def _socket_of(context: Context, seconds: float) -> Path:
    folder = socket_base() / f"florilegium-{os.getuid()}"
    make_private(folder)
    # each node of each run has one resident; a change of the modules' path or of `stay` leads to a new resident
    about = (context.run_id, context.node_id, sorted(context.node_config.items()))
    return folder / "-".join(
        hashlib.sha256(repr(part).encode()).hexdigest()[:12] for part in (about, (sys.path, seconds))
    )


def _connect(path: Path) -> Connection | None:
    """Return a connection to the resident that listens at a path. None if no resident runs, or it is ending."""
    try:
        connection = Client(str(path), family="AF_UNIX")
        connection.recv()
    except (EOFError, OSError):
        return None
    return connection


def _start(path: Path, seconds: float) -> Connection:
    for former in path.parent.glob(f"{path.name.partition('-')[0]}-*"):
        former.unlink(missing_ok=True)  # ends a resident that was started with other modules or another idle time
    done = subprocess.run(
        [sys.executable, "-m", "apps.resident", str(path), str(seconds), str(os.getppid())],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # the resident must not end with this process
        check=False,
    )
    if connection := _connect(path):
        return connection
    raise RuntimeError(f"the process that should stay at this site ended at once, with exit code {done.returncode}")
