"""The engine ``inprocess``: a federation in one Python process.

The ServerApp, the strategy and the ClientApp are the same objects as in a deployment. The engine's `Grid` calls the
ClientApp directly when the server pushes a message. Server and client get separate copies of a message's records, so
changes by one are not visible to the other. The arrays in the records are immutable bytes, which are not copied.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from flwr.app import Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from apps.sites.shared_disk import share_disk
from apps.sites.staying import look_up
from apps.sites.withheld import VERBOSE
from clients.progress import allow_bars
from payloads.broadcast import BlockReplies, Broadcast, Introductions, ReplyBlock
from payloads.flower_internals import make_twin
from payloads.handshake import SiteReport
from simulations.engines.flower_internals import ErrorCode, make_reply, own_message, own_records
from simulations.engines.grid import FIRST_NODE_ID, AnsweringGrid, add_id, error_reply, run_on, task_identity


class Together(Protocol):
    """A function that answers several messages in one computation."""

    def __call__(
        self, messages: Sequence[Message], contexts: Sequence[Context | None]
    ) -> Sequence[Message | Exception | None]:
        """Answer messages to different nodes.

        Args:
            messages: The messages.
            contexts: The nodes' contexts, in which the function saves the clients' memories.

        Returns:
            For each message: a reply, an exception, or None, with which the function leaves it to the ClientApp.
        """

    def introduce(
        self, cohort: Broadcast, contexts: Mapping[int, Context]
    ) -> tuple[list[SiteReport], dict[str, Any]] | None:
        """Answer the handshake; see `answer_cohort`.

        Returns:
            The report of each node, and the facts about all. None: no replies.
        """

    def answer_cohort(
        self, cohort: Broadcast, contexts: Mapping[int, Context]
    ) -> Sequence[tuple[ReplyBlock, Sequence[int]]]:
        """Answer messages with a common content as blocks.

        Args:
            cohort: The messages, to nodes whose settings differ only in the partition id.
            contexts: The context of each node. The function may keep the clients' memories itself.

        Returns:
            The values of some replies in blocks, and the place in the cohort of each of a block's rows.
        """

    def give_back(self, context: Context) -> None:
        """Move a client's memory to its node's context, since the ClientApp will answer a message to the node."""


class InProcessGrid(AnsweringGrid):
    """A grid whose nodes are contexts in this process.

    Args:
        client_app: The ClientApp of every node.
        num_clients: The number of nodes, whose partition ids are 0 to num_clients - 1.
        run_config: The flat run config, copied for every node.
        node_configs: Extra node-config entries for each node. Empty: no entries.
        threads: The number of nodes whose ClientApps run at the same time. Messages to a node always run one by one.
        together: A function that answers several messages in one computation, see `Together`. None: the ClientApp
            answers all messages.
        partitions: The partition ids of this grid's nodes. None: all partitions.
        run_id: The run id in the nodes' contexts, after which sites name files on their disks. None: a random id.
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
        partitions: Iterable[int] | None = None,
        run_id: int | None = None,
    ) -> None:
        super().__init__()
        share_disk()
        if node_configs and len(node_configs) != num_clients:
            raise ValueError(f"{len(node_configs)} node configs for {num_clients} clients")
        self._app, self._together, self._alike = client_app, together, not node_configs
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "client") if threads > 1 else None
        run_id = secrets.randbits(63) if run_id is None else run_id
        shared = dict(run_config)  # each ClientApp gets its own copy
        self._contexts = {
            FIRST_NODE_ID + partition: Context(
                run_id=run_id,
                node_id=FIRST_NODE_ID + partition,
                node_config=_node_config(partition, num_clients, node_configs[partition] if node_configs else {}),
                state=RecordDict(),
                run_config=shared,
            )
            for partition in (range(num_clients) if partitions is None else partitions)
        }

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self._contexts)

    def run_together(self, nodes: int) -> None:
        """Allow several nodes' ClientApps to run at the same time, for clients that wait for each other's messages.

        Args:
            nodes: The minimum number of simultaneous ClientApps. It never lowers the present number.
        """
        if nodes > self._threads:
            self.close()
            self._threads, self._pool = nodes, ThreadPoolExecutor(nodes, "client")

    def close(self) -> None:
        """End the threads, and complete the nodes' contexts."""
        if self._together is not None:
            for context in self._contexts.values():
                self._together.give_back(context)
        if self._pool is not None:
            self._pool.shutdown()

    def answer_cohort(self, cohort: Broadcast) -> BlockReplies | Introductions | None:
        """Answer messages with a common content as a block, as far as the grid's ``together`` can."""
        known = self._alike and len(set(cohort.nodes)) == len(cohort) and self._contexts.keys() >= set(cohort.nodes)
        if self._together is None or not known:
            return None

        def reply(content: RecordDict, message: Message) -> Message:
            return add_id(make_reply(content, message))

        if cohort.kind == MessageType.QUERY:
            if (introduced := self._together.introduce(cohort, self._contexts)) is None:
                return None
            self.accept(cohort)
            return Introductions(cohort, *introduced, reply)
        if not (blocks := self._together.answer_cohort(cohort, self._contexts)):
            return None
        self.accept(cohort)
        rest = sorted(set(range(len(cohort))).difference(*(rows for _, rows in blocks)))
        apart = dict(zip(rest, self.answer([cohort[place] for place in rest]), strict=True))
        return BlockReplies(cohort, blocks, apart, reply)

    def answer(self, messages: list[Message]) -> list[Message]:
        """Run each message's ClientApp."""
        replies: dict[int, Message] = {}
        nodes = [message.metadata.dst_node_id for message in messages]
        if self._together is not None:
            contexts = [self._contexts.get(node) for node in nodes]
            for context in contexts:
                if context is not None:
                    self._together.give_back(context)
            if len(set(nodes)) == len(nodes):
                for index, outcome in enumerate(self._together(messages, contexts)):
                    if outcome is not None:
                        replies[index] = _as_reply(outcome, messages[index])
        by_node: dict[int, list[int]] = {}
        for index, node in enumerate(nodes):
            if index not in replies:
                by_node.setdefault(node, []).append(index)

        def serve(indices: list[int]) -> None:
            for index in indices:
                replies[index] = self._answer(messages[index])

        list((map if self._pool is None else self._pool.map)(serve, by_node.values()))
        return [replies[index] for index in range(len(messages))]

    def _answer(self, message: Message) -> Message:
        context = self._contexts.get(message.metadata.dst_node_id)
        if context is None:
            reason = f"the run has no node {message.metadata.dst_node_id}"
            return error_reply(ErrorCode.NODE_UNAVAILABLE, reason, message)
        own = _own_context(context)
        try:
            reply = self._app(own_message(message), own)
            _check_reply(reply, message)
        except Exception as exception:
            return _as_reply(exception, message)
        if own.run_config != context.run_config:
            reason = "The `run_config` field of the `Context` object cannot be modified."
            return error_reply(ErrorCode.UNKNOWN, reason, message)
        context.state = own_records(own.state)
        return add_id(own_message(reply))


def _as_reply(outcome: Message | Exception, message: Message) -> Message:
    """Return a client's reply with an id, or an error reply about the client's exception."""
    if isinstance(outcome, Message):
        return add_id(outcome)
    return error_reply(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(outcome)}:<'{outcome}'>", message)


def _check_reply(reply: object, message: Message) -> None:
    if not isinstance(reply, Message):
        raise TypeError(f"the ClientApp returned {type(reply).__name__}, expected a Message")
    if reply.metadata.reply_to_message_id != message.metadata.message_id:
        raise ValueError("the ClientApp's reply does not answer the message that the ClientApp received")


def _node_config(
    partition: int, partitions: int, own: Mapping[str, bool | int | float | str]
) -> dict[str, bool | int | float | str]:
    """Return a node's config.

    Sites send errors in full to the server, since all files are on this machine, unless a node config sets
    ``verbose-errors``.
    """
    verbose = {VERBOSE: True} if look_up(own, "privacy", VERBOSE) is None else {}
    return {"partition-id": partition, "num-partitions": partitions, **verbose, **own}


def _own_context(context: Context) -> Context:
    own = make_twin(context)
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
    """Run a federation in this process. Exceptions of the ServerApp propagate.

    Returns:
        The grid, with the clients' final contexts.
    """
    with task_identity(), allow_bars():
        grid = InProcessGrid(client_app, num_clients, run_config, node_configs, threads, together)
        run_on(grid, server_app, run_config)
        return grid
