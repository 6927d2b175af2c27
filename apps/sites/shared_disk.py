"""Paths in a message: only a simulation, whose clients share a disk with their server, uses them."""

import sys
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from payloads.flower_internals import CLIENT_ACTOR_MODULE
from payloads.record import PayloadError
from payloads.wire import LOCAL, find

_engines: list[bool] = []


def share_disk() -> None:
    """Let the clients of this process use their server's paths. An engine of a simulation calls this function."""
    _engines.append(True)


def shares_disk() -> bool:
    """Whether this process simulates its clients: in one of our engines, or in an actor of Flower's."""
    return bool(_engines) or CLIENT_ACTOR_MODULE in sys.modules


def read_paths(records: RecordDict) -> dict[str, Any]:
    """Return the paths that a message brings, by name; {} if it brings none.

    Args:
        records: The message's content.

    Raises:
        PayloadError: A deployed site received paths: its server could name any folder of the site.
    """
    paths = dict(find(records, LOCAL, ConfigRecord) or {})
    if paths and not shares_disk():
        raise PayloadError(f"message with paths ({', '.join(sorted(paths))}), allowed: none outside of a simulation")
    return paths
