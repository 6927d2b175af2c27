"""Parts of Flower that are not in its public API and that only the engines use, collected for upgrades of Flower.

``payloads/flower_internals.py`` has the parts that the apps use too.
"""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.common.constant import ErrorCode as ErrorCode
from flwr.supercore.run import Run as Run

from payloads.flower_internals import make_twin

T = TypeVar("T")

# Output of ``flwr ... --format json``: fields, and the states of a run that is running or has completed.
RUN_ID, RUNS, STATUS, DETAILS = "run-id", "runs", "status", "status-details"
SUCCESS, ERROR_MESSAGE = "success", "error-message"
UNFINISHED = ("pending", "starting", "running")
COMPLETED = "finished:completed"


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message its id, as a SuperLink does when it accepts one."""
    message.metadata.__dict__["_message_id"] = message_id


# The functions below copy messages and records around the same immutable bytes. They do not call Flower's constructors,
# which would check every value and give messages a new time stamp.


def make_reply(content: RecordDict, message: Message) -> Message:
    """Return ``Message(content, reply_to=message)``, without the checks that take three quarters of its time."""
    reply, metadata, now = make_twin(message), make_twin(message.metadata), time.time()
    request = message.metadata.__dict__
    metadata.__dict__.update(
        _message_id="",
        _src_node_id=request["_dst_node_id"],
        _dst_node_id=request["_src_node_id"],
        _src_task_id=request["_dst_task_id"],
        _dst_task_id=request["_src_task_id"],
        _reply_to_message_id=request["_message_id"],
        _created_at=now,
        _ttl=request["_created_at"] + request["_ttl"] - now,
    )
    metadata.delivered_at = ""
    reply.__dict__.update(_metadata=metadata, _content=content)
    return reply


def own_message(message: Message) -> Message:
    """Return a copy of a message whose metadata and records can be changed independently."""
    own = make_twin(message)
    own.__dict__["_metadata"] = make_twin(message.metadata)
    if message.has_content():
        own.__dict__["_content"] = own_records(message.content)
    return own


def with_content(message: Message, content: RecordDict | None) -> Message:
    """Return a copy of a message with another content. None: without content."""
    changed = make_twin(message)
    changed.__dict__["_content"] = content
    return changed


def own_records(records: RecordDict) -> RecordDict:
    """Return a copy of records that can be changed independently."""
    return _like(records, _own_record)


def _own_record(record: Any) -> Any:
    return _like(record, make_twin if isinstance(record, ArrayRecord) else _own_value)


def _own_value(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value


def _like(record: T, own: Callable[[Any], Any]) -> T:
    like = record.__class__.__new__(record.__class__)
    old, new = record.__dict__, like.__dict__
    new["_check_key_fn"], new["_check_value_fn"] = old["_check_key_fn"], old["_check_value_fn"]
    new["_data"] = {name: own(value) for name, value in old["_data"].items()}
    return like
