"""Passes messages on to a process that stays at a site from message to message, see `apps.resident`.

This module is imported anew for each message, and so imports nothing that takes long.
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
    """Return how long a site's process waits for another message, in seconds; 0: none stays, or the value is invalid.

    `apps.sites.site_config.effective` refuses an invalid value.

    Args:
        node: The node config, effective or as it was given.
    """
    value = node.get(STAY, look_up(node, "process", STAY))
    return float(value) if type(value) in (int, float) and 0 < value < float("inf") else 0.0


def look_up(node: Mapping[str, Any], table: str, key: str) -> Any:
    """The value of a key in the file that a node config names, without any check; None if there is none.

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
    """Let the process that stays answer a message; start it if there is none.

    Args:
        context: gets the state that the answer leaves.
        seconds: after which it ends if no other message comes.

    Raises:
        PermissionError: the folder for its socket is another user's.
        RuntimeError: it has ended without an answer.
        Exception: what the ClientApp raises.
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
    # each node of each run has one process, and another if it finds its modules elsewhere or `stay` has changed
    about = (context.run_id, context.node_id, sorted(context.node_config.items()))
    return folder / "-".join(
        hashlib.sha256(repr(part).encode()).hexdigest()[:12] for part in (about, (sys.path, seconds))
    )


def _connect(path: Path) -> Connection | None:
    """A connection to the process that listens there, if there is one and it does not end just now."""
    try:
        connection = Client(str(path), family="AF_UNIX")
        connection.recv()
    except (EOFError, OSError):
        return None
    return connection


def _start(path: Path, seconds: float) -> Connection:
    for former in path.parent.glob(f"{path.name.partition('-')[0]}-*"):
        former.unlink(missing_ok=True)  # which also ends a process with other modules or another time
    done = subprocess.run(
        [sys.executable, "-m", "apps.resident", str(path), str(seconds), str(os.getppid())],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # it must not end with this process
        check=False,
    )
    if connection := _connect(path):
        return connection
    raise RuntimeError(f"no process stays at this site: it has ended at once, with code {done.returncode}")
