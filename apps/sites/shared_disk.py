"""Paths in the server's messages. Only simulated clients use them, since they share a disk with the server."""

import sys
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from payloads.flower_internals import CLIENT_ACTOR_MODULE
from payloads.record import PayloadError
from payloads.wire import LOCAL, find

_engines: list[bool] = []


def share_disk() -> None:
    """Let the clients of this process use paths of the server. Engines of simulations call this function."""
    _engines.append(True)


def shares_disk() -> bool:
    """Return whether this process simulates clients: in an engine of this project, or in an actor of Flower."""
    return bool(_engines) or CLIENT_ACTOR_MODULE in sys.modules


def read_paths(records: RecordDict) -> dict[str, Any]:
    """Return the paths in a message, by name; {} without paths.

    Args:
        records: The message's content.

    Raises:
        PayloadError: A deployed site received paths, with which the server could name any folder of the site.
    """
    paths = dict(find(records, LOCAL, ConfigRecord) or {})
    if paths and not shares_disk():
        raise PayloadError(f"message with paths ({', '.join(sorted(paths))}): paths are allowed only in a simulation")
    return paths
