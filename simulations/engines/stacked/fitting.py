"""The local steps of a round for several clients in one computation, on blocks with a row for each client.

A method's `step` is called once for all clients, since the code of a step also works with a first axis of clients. So
are `start` and `finish` if the method is ``stacked``; otherwise they are called once for each client. Only the drawing
of batches and the network's matrix products have separate implementations. These products add numbers in another order,
so results differ from the results of separate clients by rounding errors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from clients.base import Fitted, MethodClient
from methods.method import Task, as_array
from payloads.record import FloatArray, IntArray, Payload
from payloads.wire import ready_to_send
from problems.image_tensor import ImageTensor
from problems.site import Site
from simulations.engines.stacked.carries import merge, stack_records, take_record
from simulations.engines.stacked.networks import StackedNetwork
from simulations.engines.stacked.pairs import PairStacking
from simulations.engines.stacked.saddles import SaddleStacking
from simulations.engines.stacked.samples import SampleStacking
from simulations.engines.stacked.stacking import Stacking

T = TypeVar("T")
# Several stacks may train at the same time, and all clients of a process share one model.
_model_lock = threading.Lock()
STACKINGS: tuple[Stacking, ...] = (SampleStacking(), PairStacking(), SaddleStacking())


def stacking_of(client: MethodClient[Any]) -> Stacking | None:
    """Return the `Stacking` for a client's method. None: the client can only train alone.

    Stacking requires a network with gradients in closed form: ``linear``, ``linear-no-intercept`` or ``mlp``. Clients
    with offsets, with augmentation, or with images in files train alone.
    """
    site = client.site
    if site.offsets is not None or site.augmentation is not None or isinstance(site.features, ImageTensor):
        return None
    stacking = next((stacking for stacking in STACKINGS if type(client.objective) in stacking.objectives), None)
    return None if stacking is None or client.objective.model.dense is None else stacking


def fit_together(
    clients: Sequence[MethodClient[Any]], parameters: list[FloatArray], config: dict[str, Any]
) -> list[Fitted | Exception]:
    """Return the results of all clients' ``fit``, computed together.

    Args:
        clients: Clients of one method, with batches of one shape.
        parameters: The common argument ``parameters`` of ``fit``.
        config: The common argument ``config`` of ``fit``.

    Returns:
        Each client's result of ``fit``, or the exception that it raised.

    Raises:
        NotAlikeError: The clients cannot be stacked. No client has changed.
    """
    if clients[0].method.stacked:
        return _fit_as_block(clients, parameters, config)
    first, half = clients[0], clients[0].method.client
    stacking = stacking_of(first)
    assert stacking is not None
    outcomes: list[Any]
    with _model_lock:
        first.begin(parameters, config)
        x = first.model.parameters
        points = x.expand(len(clients), -1).clone().unbind()
        outcomes = [
            attempt(_start, client, client.task(config), point, config)
            for client, point in zip(clients, points, strict=True)
        ]
        ready = [index for index, outcome in enumerate(outcomes) if not isinstance(outcome, Exception)]
        if not ready:
            return outcomes
        tasks, down = [outcomes[index][0] for index in ready], outcomes[ready[0]][1]
        network = StackedNetwork(first.objective.model.dense, x.expand(len(ready), -1))
        together = stacking.join(tasks[0], [task.site for task in tasks], network)
        carry = stacking.stack([outcomes[index][2] for index in ready], together)
    for eta, batch in stacking.batches(together, tasks, down, half.batches):
        carry = half.step(carry, batch, eta, together)
    with _model_lock:
        for index, task, own in zip(ready, tasks, stacking.unstack(carry, tasks), strict=True):
            outcomes[index] = attempt(_finish, clients[index], task, own, x)
    return outcomes


def fit_block(
    client: MethodClient[Any],
    sites: Sequence[Site],
    recalled: Sequence[tuple[IntArray, Payload | None]],
    parameters: list[FloatArray],
    config: dict[str, Any],
) -> tuple[Tensor, Any, Any]:
    """Return the models (C, d), the payloads and the memories of all clients, computed together.

    Only for methods that are ``stacked``.

    Args:
        client: One of the clients. It does not change, but its model does.
        sites: The data of all clients.
        recalled: The memories of some clients as one record, or None if they have no memory, and the places of these
            clients among all. The method's `start` is called once for each entry.
        parameters: The common argument ``parameters`` of ``fit``.
        config: The common argument ``config`` of ``fit``.

    Returns:
        The models; and one record for all clients, whose floats have a first axis of clients, or None.
    """
    stacking, half = stacking_of(client), client.method.client
    assert stacking is not None
    with _model_lock:
        client.begin(parameters, config)
        x = client.model.parameters.expand(len(sites), -1).clone()
        origin = x.clone() if client.training.steps_by_rows else None
        task, down = client.task(config), client.received(config)
        together = stacking.join(task, sites, StackedNetwork(client.objective.model.dense, x))
    parts = [(x[places] if len(recalled) > 1 else x, memory) for places, memory in recalled]
    started = [half.start(part, down, memory, together) for part, memory in parts]
    carry = merge(started, [places for places, _ in recalled])
    for eta, batch in stacking.batches(together, (), down, half.batches):
        carry = half.step(carry, batch, eta, together)
    arrived, up, new = half.finish(carry, together)
    return arrived if origin is None else origin.lerp(arrived, task.stretch), up, new


def _fit_as_block(
    clients: Sequence[MethodClient[Any]], parameters: list[FloatArray], config: dict[str, Any]
) -> list[Fitted | Exception]:
    """Return the results of all clients' ``fit`` for a method that is ``stacked``; see `fit_together`."""
    outcomes: list[Any] = [attempt(_look, client, config) for client in clients]
    ready = [index for index, outcome in enumerate(outcomes) if not isinstance(outcome, Exception)]
    if not ready:
        return outcomes
    memories = [outcomes[index] for index in ready]
    places = [np.flatnonzero([(memory is None) == new for memory in memories]) for new in (False, True)]
    recalled = [(own, stack_records([memories[place] for place in own])) for own in places if len(own)]
    sites = [clients[index].site for index in ready]
    arrived, up, new = fit_block(clients[ready[0]], sites, recalled, parameters, config)
    for row, index in enumerate(ready):
        client = clients[index]
        client.outbox, client.state = take_record(up, row), take_record(new, row)
        outcomes[index] = [ready_to_send(as_array(arrived[row]))], len(client.site), {}
    return outcomes


def _look(client: MethodClient[Any], config: dict[str, Any]) -> Any:
    """Return the client's memory, after its checks of the message and of the memory."""
    client.received(config)
    return client.recall()


def attempt(call: Callable[..., T], *arguments: Any) -> T | Exception:
    """Return the result of a call, or its exception."""
    try:
        return call(*arguments)
    except Exception as error:
        return error


def _start(client: MethodClient[Any], task: Task[Any, Any], x: Tensor, config: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return the client's task, the server's payload to the client, and the carry before the first step."""
    down = client.received(config)
    return task, down, client.method.client.start(x, down, client.recall(), task)


def _finish(client: MethodClient[Any], task: Task[Any, Any], carry: Any, x: Tensor) -> Fitted:
    """Return the result of the client's ``fit``."""
    arrived, client.outbox, client.state = client.method.client.finish(carry, task)
    if client.training.steps_by_rows:
        arrived = x.lerp(arrived.to(x.device), task.stretch)
    return [ready_to_send(as_array(arrived))], len(client.site), {}
