"""The names of Flower that we use although it does not promise them: all are here, and nowhere else.

Flower promises what the packages ``flwr.app``, ``flwr.client``, ``flwr.clientapp``, ``flwr.common``,
``flwr.serverapp`` and ``flwr.simulation`` list in ``__all__``, and the options of its commands. The names in this
module may change with any release: ``tests/payloads/test_flower_internals.py`` then fails first and says which did.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.common.constant import ErrorCode as ErrorCode
from flwr.supercore.exit import add_exit_handler as add_exit_handler
from flwr.supercore.run import Run as Run
from flwr.supercore.task_identity import TaskIdentity

T = TypeVar("T")

# Names of classes that are recognised by them, which saves importing the classes: the grids, and Ray's actor.
SIMULATION_GRID = "InMemoryGrid"
DEPLOYMENT_GRID = "HttpGrid"
CLIENT_ACTOR = "ClientAppActor"
# the simulation grid's attribute: seconds between two checks for replies
PULL_INTERVAL = "pull_interval"
# A ClientApp's exception in the error of a reply. A deployed site names the exception's own class; a simulation names
# a class of Flower's, and ends with the exception's text.
CLIENT_EXCEPTION = r"<class '.*?'>:<'(?:.*Exception ClientAppException occurred\. Message: )?(.+)'>"

# Output of ``flwr ... --format json``: fields, and the states of a run that has not ended or has ended well.
RUN_ID, RUNS, STATUS, DETAILS = "run-id", "runs", "status", "status-details"
SUCCESS, ERROR_MESSAGE = "success", "error-message"
UNFINISHED = ("pending", "starting", "running")
COMPLETED = "finished:completed"
# An environment variable that keeps Flower from installing the dependencies anew for every run.
NO_INSTALLATION = "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"


@contextmanager
def identity(task_id: int, run_id: int, node_id: int) -> Iterator[None]:
    """Give this process the identity that ``Message`` asks for, and restore the old one afterwards."""
    before = (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id)
    TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = task_id, run_id, node_id
    try:
        yield
    finally:
        TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message its id, as a SuperLink does when it accepts one."""
    message.metadata.__dict__["_message_id"] = message_id


# Copies of containers around the same immutable bytes. They are made without constructors, which would check every
# value and give messages a new time stamp.


def own_message(message: Message) -> Message:
    """A message whose metadata and records can be changed without changing another's."""
    own = _twin(message)
    own.__dict__["_metadata"] = _twin(message.metadata)
    if message.has_content():
        own.__dict__["_content"] = own_records(message.content)
    return own


def own_records(records: RecordDict) -> RecordDict:
    """Records that can be changed without changing another's."""
    return _like(records, _own_record)


def _own_record(record: Any) -> Any:
    return _like(record, _twin if isinstance(record, ArrayRecord) else _own_value)


def _own_value(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value


def _like(record: T, own: Callable[[Any], Any]) -> T:
    like = record.__class__.__new__(record.__class__)
    old, new = record.__dict__, like.__dict__
    new["_check_key_fn"], new["_check_value_fn"] = old["_check_key_fn"], old["_check_value_fn"]
    new["_data"] = {name: own(value) for name, value in old["_data"].items()}
    return like


def _twin(one: T) -> T:
    twin = one.__class__.__new__(one.__class__)
    twin.__dict__.update(one.__dict__)
    return twin


def parse_config_args(text: str) -> dict[str, Any]:
    """The flat values of ``key=value`` pairs or of a TOML file, as ``flwr run`` and ``flower-supernode`` read them.

    Raises:
        click.ClickException, OSError, ValueError: the text is neither, or the file cannot be read.
    """
    from flwr.common.config import parse_config_args as parse  # half a second that only the command line needs

    values: dict[str, Any] = parse([text])
    return values
