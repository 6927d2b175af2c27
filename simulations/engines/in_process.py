"""The in-process engine: the same ServerApp, Strategy and ClientApp objects, with no polling and no processes.

Its ``flwr.serverapp.Grid`` runs a message's ClientApp when the message is pushed. Node ids, message ids, contexts and
error replies behave as in Flower's own simulation. Each side gets its own containers of a message's records, so that
its changes to them do not reach the other side. The arrays inside are immutable bytes and are shared.
"""

from __future__ import annotations

import gc
import itertools
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from copy import copy
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from apps.sites.withheld import VERBOSE
from simulations.engines.flower_internals import ErrorCode, Run, identity, own_message, own_records, set_message_id

# Takes messages to different nodes, which it does not change, and the nodes' contexts, in which it keeps what a client
# remembers. Returns for each message a new reply, the exception that was met, or None for one that it leaves to others.
Together = Callable[[Sequence[Message], Sequence[Context | None]], Sequence[Message | Exception | None]]

RUN_ID = 1
SERVER_NODE_ID = 1
FIRST_NODE_ID = 1000


def task_identity() -> AbstractContextManager[None]:
    """Set the identity that ``Message`` requires of this process, and restore the former one afterwards."""
    return identity(RUN_ID, RUN_ID, SERVER_NODE_ID)


class InProcessGrid(Grid):
    """A grid whose nodes are contexts in this process.

    Args:
        client_app: what every node runs.
        num_clients: the number of nodes, whose partition ids are 0 to num_clients - 1.
        run_config: the flat run config, copied for every node.
        node_configs: extra node-config entries, one mapping for each node; empty: none.
        threads: how many nodes' ClientApps run at the same time; messages to one node always run one after another.
        together: answers messages of a push in place of the ClientApp, which answers what it leaves.
    """

    engine = "in-process"

    def __init__(
        self,
        client_app: ClientApp,
        num_clients: int,
        run_config: Mapping[str, bool | int | float | str],
        node_configs: Sequence[Mapping[str, bool | int | float | str]] = (),
        threads: int = 1,
        together: Together | None = None,
    ) -> None:
        if node_configs and len(node_configs) != num_clients:
            raise ValueError(f"{len(node_configs)} node configs for {num_clients} clients")
        self._app, self._together = client_app, together
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "client") if threads > 1 else None
        self._run = Run.create_empty(RUN_ID)
        self._message_ids = itertools.count(1)
        self._replies: dict[str, Message] = {}
        run_id = secrets.randbits(63)
        self._contexts = {
            FIRST_NODE_ID + partition: Context(
                # what sites keep by run on their disks is of this run alone
                run_id=run_id,
                node_id=FIRST_NODE_ID + partition,
                # the sites' files lie beside the server
                node_config={"partition-id": partition, "num-partitions": num_clients, VERBOSE: True, **more},
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for partition, more in enumerate(node_configs or [{}] * num_clients)
        }

    def set_run(self, run: Run) -> None:
        """Set the run the grid operates in."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Flower's deprecated constructor of messages."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """The ids of all nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run each message's ClientApp and keep its reply until it is pulled.

        Where a ClientApp raises, or there is no such node, the reply has an error, as in Flower's own simulation.

        Returns:
            The ids that the messages have been given, in their order.

        Raises:
            ValueError: a message is a reply, or was pushed before; no ClientApp has been run.
        """
        pushed = list(messages)
        for message in pushed:
            if message.metadata.delivered_at or message.metadata.reply_to_message_id:
                raise ValueError(f"Invalid message: {message.metadata.message_id or 'a reply'} was sent before")
            message.metadata.delivered_at = "in-process"
            set_message_id(message, f"message-{next(self._message_ids)}")
        for message, reply in zip(pushed, self._answers(pushed), strict=True):
            self._replies[message.metadata.message_id] = reply
        return [message.metadata.message_id for message in pushed]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to some messages, each handed out once.

        Args:
            message_ids: as `push_messages` returned them; those without a reply are passed over.
        """
        return [self._replies.pop(message_id) for message_id in list(message_ids) if message_id in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None, **more: Any
    ) -> Iterable[Message]:
        """Push messages and pull their replies, in the order of the messages.

        Args:
            timeout: has no effect and loses no reply, as a message is answered before the call that pushes it returns.
            more: any other limit on waiting that a later Flower may pass; without effect too.
        """
        return self.pull_messages(self.push_messages(messages))

    def run_together(self, nodes: int) -> None:
        """Let the ClientApps of several nodes run at the same time, for clients that talk to each other.

        Args:
            nodes: how many; the number that was set before is never lowered.
        """
        if nodes > self._threads:
            self.close()
            self._threads, self._pool = nodes, ThreadPoolExecutor(nodes, "client")

    def close(self) -> None:
        """End the threads, if there are any."""
        if self._pool is not None:
            self._pool.shutdown()

    def _answers(self, messages: list[Message]) -> list[Message]:
        replies: dict[int, Message] = {}
        nodes = [message.metadata.dst_node_id for message in messages]
        if self._together is not None and len(set(nodes)) == len(nodes):
            outcomes = self._together(messages, [self._contexts.get(node) for node in nodes])
            for place, outcome in enumerate(outcomes):
                if outcome is not None:
                    replies[place] = self._stamp(_as_reply(outcome, messages[place]))
        by_node: dict[int, list[int]] = {}
        for place, node in enumerate(nodes):
            if place not in replies:
                by_node.setdefault(node, []).append(place)

        def serve(places: list[int]) -> None:
            for place in places:
                replies[place] = self._answer(messages[place])

        list((map if self._pool is None else self._pool.map)(serve, by_node.values()))
        return [replies[place] for place in range(len(messages))]

    def _answer(self, message: Message) -> Message:
        context = self._contexts.get(message.metadata.dst_node_id)
        if context is None:
            error = Error(ErrorCode.NODE_UNAVAILABLE, f"no node {message.metadata.dst_node_id}")
            return self._stamp(Message(error, reply_to=message))
        own = _own_context(context)
        try:
            reply = self._app(own_message(message), own)
            _check_reply(reply, message)
        except Exception as exception:
            return self._stamp(_as_reply(exception, message))
        if own.run_config != context.run_config:
            reason = "The `run_config` field of the `Context` object cannot be modified."
            return self._stamp(Message(Error(ErrorCode.UNKNOWN, reason), reply_to=message))
        context.state = own_records(own.state)
        return self._stamp(own_message(reply))

    def _stamp(self, reply: Message) -> Message:
        set_message_id(reply, f"reply-{reply.metadata.reply_to_message_id}")
        return reply


def _as_reply(outcome: Message | Exception, message: Message) -> Message:
    """What a client has answered, or an error reply if it raised an exception."""
    if isinstance(outcome, Message):
        return outcome
    error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(outcome)}:<'{outcome}'>")
    return Message(error, reply_to=message)


def _check_reply(reply: object, message: Message) -> None:
    if not isinstance(reply, Message):
        raise TypeError(f"the ClientApp returned {type(reply).__name__}, expected a Message")
    if reply.metadata.reply_to_message_id != message.metadata.message_id:
        raise ValueError("the ClientApp's reply does not answer the message it was given")


def _own_context(context: Context) -> Context:
    own = copy(context)
    own.node_config, own.run_config = dict(context.node_config), dict(context.run_config)
    own.state = own_records(context.state)
    return own


def run_in_process(
    server_app: ServerApp,
    client_app: ClientApp,
    num_clients: int,
    run_config: Mapping[str, bool | int | float | str],
    threads: int = 1,
    node_configs: Sequence[Mapping[str, bool | int | float | str]] = (),
    together: Together | None = None,
) -> InProcessGrid:
    """Run a whole federation in this process; exceptions of the ServerApp propagate.

    Returns:
        The grid, with the clients' contexts as the run left them.
    """
    with task_identity():
        grid = InProcessGrid(client_app, num_clients, run_config, node_configs, threads, together)
        context = Context(
            run_id=RUN_ID,
            node_id=SERVER_NODE_ID,
            node_config={},
            state=RecordDict(),
            run_config=dict(run_config),
        )
        gc.freeze()  # else each full collection walks over all that was imported, once in a few rounds
        try:
            server_app(grid, context)
        finally:
            gc.unfreeze()
            grid.close()
        return grid
