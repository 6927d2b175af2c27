"""The engine ``ray``: the server in this process, and the clients in the workers of a Ray cluster.

A worker is a Ray actor that computes the same clients during the whole run, and keeps their models and their state. Ray
places and restarts workers, and transfers arrays. The data set, and the content that messages of a round share, are
sent once to each machine. The server receives and checks each client's complete reply, so a run is bit-identical to a
run in one process.

If a worker dies, Ray starts it again and repeats its messages. Its clients then behave like restarted sites: they
continue with the state that they saved on disk. If they saved no state, the run reports it as lost.
"""

from __future__ import annotations

import gc
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO, getLogger
from pathlib import Path
from pickle import PickleBuffer
from typing import Any

import ray
import ray.util
from flwr.app import Array, Message, RecordDict
from flwr.common import log
from flwr.serverapp import ServerApp

from apps.client_app import app as client_app
from apps.config import Scalar, parse_run_config
from apps.sites import resources
from problems.data.spec import OWN
from simulations.arguments import Cluster, Stack
from simulations.engines.flower_internals import ErrorCode, with_content
from simulations.engines.grid import FIRST_NODE_ID, AnsweringGrid, error_reply, run_on, task_identity
from simulations.engines.in_process import InProcessGrid
from simulations.engines.ray_session import enter_folder, open_ray
from simulations.engines.stacked.messages import make_stacker

# Messages in progress at the same time. The limit bounds the memory of a first round with very many clients.
AT_ONCE = 10_000
# Arrays of at least this many bytes are sent outside their pickle, which avoids a copy.
APART = 2**16


class Worker:
    """A Ray actor, which answers messages to some of the clients.

    Args:
        folder: The working folder of the command.
        partitions: The partition ids of the worker's clients.
        clients: The number of all clients.
        config: The flat run config.
        node_configs: The node config of each of all clients. Empty: no node configs.
        stack: The maximum number of clients in one computation.
        run_id: The run id in the nodes' contexts, after which sites name files on their disks.
    """

    def __init__(
        self,
        folder: str,
        partitions: Sequence[int],
        clients: int,
        config: Mapping[str, Scalar],
        node_configs: Sequence[Mapping[str, Scalar]],
        stack: Stack,
        run_id: int,
    ) -> None:
        enter_folder(folder)
        _send_arrays(_view_array)
        together = make_stacker(stack, config)
        self._grid = InProcessGrid(
            client_app, clients, config, node_configs, together=together, partitions=partitions, run_id=run_id
        )
        self._spec, self._clients, self._has_data = parse_run_config(config).data, clients, False
        gc.freeze()  # saves time: full garbage collections then skip all imported objects

    def answer(
        self, envelopes: Sequence[tuple[Message, int]], data: Sequence[Any], *contents: RecordDict
    ) -> list[Message]:
        """Return the replies to messages.

        Args:
            envelopes: Each message without its content, and the index of its content in ``contents``.
            data: A list with Ray's reference to the data set, or an empty list. It is part of each call, since a
                restarted worker needs it again.
            contents: The different contents of the messages.
        """
        if data and not self._has_data:
            resources.adopt(self._spec, self._clients, ray.get(data[0]))
            self._has_data = True
        with task_identity():
            return self._grid.answer([with_content(message, contents[which]) for message, which in envelopes])


def _send_arrays(received: Callable[[dict[str, Any]], Array]) -> None:
    """Make Ray copy arrays that this process sends into shared memory directly, without a pickle.

    Args:
        received: A function that makes the array in the receiving process.
    """
    ray.util.register_serializer(Array, serializer=_fields_of, deserializer=received)


def _fields_of(array: Array) -> dict[str, Any]:
    return vars(array) if len(array.data) < APART else {**vars(array), "data": PickleBuffer(array.data)}


def _own_array(fields: dict[str, Any]) -> Array:
    """Return an array with its own bytes, which a client may keep."""
    return _array_around(bytes(fields["data"]), fields)


def _view_array(fields: dict[str, Any]) -> Array:
    """Return an array in Ray's memory, without a copy. Only for the server, which keeps no reply after the run."""
    return _array_around(memoryview(fields["data"]), fields)


def _array_around(data: bytes | memoryview, fields: dict[str, Any]) -> Array:
    array = Array.__new__(Array)
    array.__dict__.update(fields, data=data)
    return array


class RayGrid(AnsweringGrid):
    """A grid whose nodes are contexts in Ray workers. Ray must have been started or joined before.

    Args:
        clients: The number of nodes, whose partition ids are 0 to clients - 1.
        config: The flat run config, copied for every node.
        node_configs: Extra node-config entries for each node. Empty: no entries.
        stack: The maximum number of clients that a worker trains in one computation.
        cluster: The number of workers, and the resources of each worker.
    """

    engine = "ray"

    def __init__(
        self,
        clients: int,
        config: Mapping[str, Scalar],
        node_configs: Sequence[Mapping[str, Scalar]],
        stack: Stack,
        cluster: Cluster,
    ) -> None:
        super().__init__()
        _send_arrays(_own_array)  # the worker receives them: each client may keep its arrays, so it gets its own bytes
        self._clients = clients
        resources_by_name: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        count = min(clients, cluster.workers or int(resources_by_name.get("CPU", 1)))
        # By default Ray reserves a CPU only while it places an actor, so a restarted actor always finds room.
        options: dict[str, Any] = {"num_gpus": cluster.gpus} if cluster.gpus else {}
        actor = ray.remote(Worker).options(max_restarts=-1, max_task_retries=1, scheduling_strategy="SPREAD", **options)
        run_id, folder = secrets.randbits(63), str(Path.cwd())
        self._data = _share_data(config, clients)
        self._workers: list[Any] = [
            actor.remote(folder, range(first, clients, count), clients, config, node_configs, stack, run_id)
            for first in range(count)
        ]

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return range(FIRST_NODE_ID, FIRST_NODE_ID + self._clients)

    def answer(self, messages: list[Message]) -> list[Message]:
        """Let all workers answer their clients' messages at the same time."""
        parts = (messages[begin : begin + AT_ONCE] for begin in range(0, len(messages), AT_ONCE))
        return [reply for part in parts for reply in self._answer_part(part)]

    def _answer_part(self, messages: list[Message]) -> list[Message]:
        """Send each worker its clients' messages in one call, and return the replies in the order of the messages.

        Ray stores a content that several messages share once.
        """
        shares: list[list[int]] = [[] for _ in self._workers]
        contents: dict[int, Any] = {}
        for index, message in enumerate(messages):
            shares[(message.metadata.dst_node_id - FIRST_NODE_ID) % len(shares)].append(index)
            if id(message.content) not in contents:
                contents[id(message.content)] = ray.put(message.content)
        pending = []
        for worker, indices in zip(self._workers, shares, strict=True):
            keys = dict.fromkeys(id(messages[p].content) for p in indices)
            numbers = {key: number for number, key in enumerate(keys)}
            envelopes = [(with_content(messages[p], None), numbers[id(messages[p].content)]) for p in indices]
            if envelopes:
                pending.append((indices, worker.answer.remote(envelopes, self._data, *(contents[key] for key in keys))))
        replies: dict[int, Message] = {}
        for indices, answers in pending:
            replies |= zip(indices, self._wait(answers, [messages[index] for index in indices]), strict=True)
        return [replies[index] for index in range(len(messages))]

    def _wait(self, answers: Any, messages: list[Message]) -> list[Message]:
        try:
            replies: list[Message] = ray.get(answers)
        except ray.exceptions.RayError as error:
            reason = f"the Ray worker of this client failed: {' '.join(str(error).split())}"
            return [error_reply(ErrorCode.NODE_UNAVAILABLE, reason, message) for message in messages]
        return replies


def _share_data(config: Mapping[str, Scalar], clients: int) -> list[Any]:
    """Read the run's data set, and put it into Ray's shared memory, of which each machine has one copy.

    Returns:
        A list with Ray's reference to the data set. An empty list if sites read their own files, if the data do not fit
        into shared memory, or if they cannot be read. In the last case each site reports the error.
    """
    spec = parse_run_config(config).data
    if spec.partition == OWN:
        return []
    try:
        reference = ray.put(resources.federated_data(spec, clients))
    except (ValueError, ray.exceptions.RayError):
        return []
    resources.adopt(spec, clients, ray.get(reference))  # the server uses this machine's copy too
    return [reference]


def run_on_ray(
    server_app: ServerApp,
    clients: int,
    config: Mapping[str, Scalar],
    node_configs: Sequence[Mapping[str, Scalar]] = (),
    stack: Stack = 1,
    *,
    cluster: Cluster,
) -> None:
    """Run a federation on Ray. Exceptions of the ServerApp propagate.

    Raises:
        ConfigError: ``stack`` is wrong, or no Ray answers at the cluster's address.
    """
    make_stacker(stack, config)  # checks ``stack`` before any worker starts
    logged = not getLogger("flwr").disabled
    with task_identity(), open_ray(cluster.workers, cluster.address, workers_log=logged):
        try:
            grid = RayGrid(clients, config, node_configs, stack, cluster)
            log(INFO, "%d Ray workers for %d clients", len(grid._workers), clients)
            run_on(grid, server_app, config)
        finally:
            resources.disown()  # later code in this process must not use arrays in Ray's memory
