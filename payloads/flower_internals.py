"""Flower's private names that this project uses. No other file uses private names of Flower, with one exception:
``simulations/engines/flower_internals.py`` has the names that only simulations need, and no site imports it.

Flower's public names are the entries of ``__all__`` in ``flwr.app``, ``flwr.client``, ``flwr.clientapp``,
``flwr.common``, ``flwr.serverapp`` and ``flwr.simulation``, and the options of its commands. The private names may
change with any release: ``tests/payloads/test_flower_internals.py`` then fails first and names them.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.exit import add_exit_handler as add_exit_handler
from flwr.supercore.logger import update_console_handler
from flwr.supercore.task_identity import TaskIdentity

T = TypeVar("T")
Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord, RecordDict)

# Names of classes, by which instances are recognised without importing the classes: the grids, and Ray's actor.
SIMULATION_GRID = "InMemoryGrid"
DEPLOYMENT_GRID = "HttpGrid"
CLIENT_ACTOR = "ClientAppActor"
# the module of the actor, which a deployed site never imports
CLIENT_ACTOR_MODULE = "flwr.simulation.ray_transport.ray_actor"
# the simulation grid's attribute: seconds between two checks for replies
PULL_INTERVAL = "pull_interval"
# A ClientApp's exception in the error of a reply. A deployed site names the exception's own class. A simulation names
# a class of Flower, and ends with the exception's text.
CLIENT_EXCEPTION = r"<class '.*?'>:<'(?:.*Exception ClientAppException occurred\. Message: )?(.+)'>"
# The errors about a query message: of a ClientApp with functions, and of a ClientApp that makes a NumPyClient.
NO_QUERY_FUNCTION = r"No query function registered with name 'default'"
NO_QUERY_MESSAGES = r"Invalid message type: query"
# An environment variable that keeps Flower from installing the dependencies again for every run.
NO_INSTALLATION = "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"


@contextmanager
def identity(task_id: int, run_id: int, node_id: int) -> Iterator[None]:
    """Set the identity of this process, which ``Message`` requires, and restore the old identity afterwards."""
    before = (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id)
    TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = task_id, run_id, node_id
    try:
        yield
    finally:
        TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before


def drop_log_colors() -> None:
    """Drop the colours of Flower's log if stderr is a file or a pipe, or if ``NO_COLOR`` is set."""
    if os.environ.get("NO_COLOR") or not sys.stderr.isatty():
        update_console_handler(colored=False)


def own_identity() -> tuple[int, int, int]:
    """Return the identity of this process, for `identity` in another process."""
    return TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id


def parse_config_args(text: str) -> dict[str, Any]:
    """Return the flat values of ``key=value`` pairs or of a TOML file, as ``flwr run`` and ``flower-supernode`` do.

    Args:
        text: The pairs, or the path of the file.

    Raises:
        click.ClickException, OSError, ValueError: The text is neither, or the file cannot be read.
    """
    from flwr.common.config import parse_config_args as parse  # takes half a second; only the command line needs it

    values: dict[str, Any] = parse([text])
    return values


def readdress(message: Message, node_id: int, content: RecordDict | None = None) -> Message:
    """Return a copy of a message for another node. Flower's constructor would take four times as long.

    Args:
        message: The message. It is not changed.
        node_id: The other node.
        content: The copy's content. None: both messages share their content.
    """
    twin, metadata = make_twin(message), make_twin(message.metadata)
    metadata.dst_node_id = node_id
    twin.__dict__["_metadata"] = metadata
    if content is not None:
        twin.__dict__["_content"] = content
    return twin


def values_of(record: ArrayRecord | ConfigRecord | MetricRecord | RecordDict) -> dict[str, Any]:
    """Return the dictionary in which a record keeps its values. Reading it is several times faster than the record."""
    values: dict[str, Any] = record.__dict__["_data"]
    return values


def fill(kind: type[Record], values: Mapping[str, Any]) -> Record:
    """Make a record without the checks of its constructor.

    Args:
        kind: The type of the record.
        values: The entries. They must have the types that the constructor accepts.
    """
    record = kind.__new__(kind)
    record.__dict__.update(_empty(kind), _data=dict(values))
    return record


@lru_cache
def _empty(kind: type[Record]) -> dict[str, Any]:
    return kind().__dict__


def make_twin(original: T) -> T:
    """Return a shallow copy of an object, made without its constructor."""
    twin = original.__class__.__new__(original.__class__)
    twin.__dict__.update(original.__dict__)
    return twin
