"""The base class of this package's grids: implementations of `flwr.serverapp.Grid` without a queue.

A call that pushes messages returns after all replies have been computed. Node ids, message ids and error replies behave
as in Flower's own simulation.
"""

from __future__ import annotations

import gc
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from payloads.broadcast import BlockReplies, Broadcast, Introductions
from payloads.flower_internals import identity
from simulations.engines.flower_internals import Run, set_message_id

RUN_ID = 1
SERVER_NODE_ID = 1
FIRST_NODE_ID = 1000


def task_identity() -> AbstractContextManager[None]:
    """Set this process's run, task and node ids, which Flower's ``Message`` requires, and reset them afterwards."""
    return identity(RUN_ID, RUN_ID, SERVER_NODE_ID)


class AnsweringGrid(Grid):
    """A grid that answers messages while they are pushed. Subclasses implement `answer`."""

    engine: ClassVar[str]

    def __init__(self) -> None:
        self._run = Run.create_empty(RUN_ID)
        self._pushed = 0
        self._replies: dict[str, Message] = {}

    @abstractmethod
    def answer(self, messages: list[Message]) -> list[Message]:
        """Return the reply to each message, with an id. If a client fails, its reply contains the error."""

    def answer_cohort(self, cohort: Broadcast) -> BlockReplies | Introductions | None:
        """Return the replies to unread messages as blocks. None: the grid answers each message."""
        return None

    def close(self) -> None:
        """Free the grid's threads or processes."""

    def set_run(self, run: Run) -> None:
        """Set the grid's run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The grid's run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message, as Flower's deprecated constructor does."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Answer each message, and keep the reply until it is pulled.

        If a ClientApp raises an exception or the node does not exist, the reply has an error, as in Flower's engine.

        Returns:
            The new ids of the messages, in their order.

        Raises:
            ValueError: A message is a reply, or was pushed before. No ClientApp has run.
        """
        pushed = list(messages)
        for message in pushed:
            if message.metadata.delivered_at or message.metadata.reply_to_message_id:
                raise ValueError(f"Invalid message: {message.metadata.message_id or 'a reply'} was sent before")
            self._stamp(message, self._pushed)
            self._pushed += 1
        for message, reply in zip(pushed, self.answer(pushed), strict=True):
            self._replies[message.metadata.message_id] = reply
        return [message.metadata.message_id for message in pushed]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return and forget the replies to messages.

        Args:
            message_ids: The ids from `push_messages`. Ids without a reply are skipped.
        """
        return [self._replies.pop(message_id) for message_id in list(message_ids) if message_id in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None, **more: Any
    ) -> Iterable[Message]:
        """Push messages and pull their replies, in the order of the messages.

        Args:
            timeout: No effect, since this call returns after all replies.
            more: Further options of later versions of Flower. No effect.
        """
        replies = None
        if isinstance(messages, Broadcast) and not messages.is_read and messages.stamp is None:
            replies = self.answer_cohort(messages)
        return self.pull_messages(self.push_messages(messages)) if replies is None else replies

    def accept(self, cohort: Broadcast) -> None:
        """Mark all messages of a cohort as sent, under new ids."""
        begin = self._pushed
        self._pushed += len(cohort)
        cohort.stamp_with(lambda place, message: self._stamp(message, begin + place))

    def _stamp(self, message: Message, number: int) -> None:
        """Mark a message as sent, under a new id."""
        message.metadata.delivered_at = self.engine
        set_message_id(message, f"message-{number + 1}")


def add_id(reply: Message) -> Message:
    """Give a reply its message id."""
    set_message_id(reply, f"reply-{reply.metadata.reply_to_message_id}")
    return reply


def error_reply(code: int, reason: str, message: Message) -> Message:
    """Return a reply with an error."""
    return add_id(Message(Error(code, reason), reply_to=message))


def run_on(grid: AnsweringGrid, server_app: ServerApp, run_config: Mapping[str, bool | int | float | str]) -> None:
    """Run a ServerApp on a grid, and close the grid. Exceptions of the ServerApp propagate."""
    context = Context(
        run_id=RUN_ID,
        node_id=SERVER_NODE_ID,
        node_config={},
        state=RecordDict(),
        run_config=dict(run_config),
    )
    gc.freeze()  # saves time: every few rounds, a full garbage collection would visit all imported objects
    try:
        server_app(grid, context)
    finally:
        gc.unfreeze()
        grid.close()
