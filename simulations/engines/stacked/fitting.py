"""A round of several clients at once: their local steps as operations on blocks with a row for each client.

A method's `start` and `finish` are called for each client, and its `step` once for all clients, since a step's lines
also work with a leading axis of clients. Only the clients' batches and the network's products are computed differently.
The sums in these products have another order, so results differ from separate clients' results by rounding.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import Tensor

from clients.base import Fitted, MethodClient
from methods.method import Task, as_array
from payloads.record import FloatArray
from payloads.wire import ready_to_send
from simulations.engines.stacked.networks import StackedNetwork
from simulations.engines.stacked.pairs import PairStacking
from simulations.engines.stacked.saddles import SaddleStacking
from simulations.engines.stacked.samples import SampleStacking
from simulations.engines.stacked.stacking import Stacking

T = TypeVar("T")
# lock for the model that all clients of a process share, since stacks may train at the same time
_turn = threading.Lock()
STACKINGS: tuple[Stacking, ...] = (SampleStacking(), PairStacking(), SaddleStacking())


def stacking_of(client: MethodClient[Any]) -> Stacking | None:
    """Return the stacking of a client with other clients; None if it can only train alone.

    It requires a network with gradients in closed form (``linear``, ``linear-no-intercept``, ``mlp``).
    """
    stacking = next((stacking for stacking in STACKINGS if type(client.objective) in stacking.objectives), None)
    return None if stacking is None or client.objective.model.dense is None else stacking


def fit_together(
    clients: Sequence[MethodClient[Any]], parameters: list[FloatArray], config: dict[str, Any]
) -> list[Fitted | Exception]:
    """Run each client's ``fit``, for all clients at once.

    Args:
        clients: Clients of one method, with batches of one shape. Each has its own inbox and memory.
        parameters: The common parameters of ``fit``.
        config: The common config of ``fit``.

    Returns:
        The result of each client's ``fit``, or its exception.

    Raises:
        NotAlikeError: The clients cannot be stacked. Nothing has changed.
    """
    first = clients[0]
    stacking, half = stacking_of(first), first.method.client
    assert stacking is not None
    outcomes: list[Any]
    with _turn:
        server_round = first.begin(parameters, config)
        x = first.model.parameters
        points = x.expand(len(clients), -1).clone().unbind()
        outcomes = [
            attempt(_start, client, client.task(server_round), point, config)
            for client, point in zip(clients, points, strict=True)
        ]
        ready = [place for place, outcome in enumerate(outcomes) if not isinstance(outcome, Exception)]
        if not ready:
            return outcomes
        tasks, downs = ([outcomes[place][part] for place in ready] for part in (0, 1))
        network = StackedNetwork(first.objective.model.dense, x.expand(len(ready), -1))
        together = stacking.join(tasks, network)
        carry = stacking.stack([outcomes[place][2] for place in ready], together)
        etas = [eta for eta, _ in half.batches(tasks[0], downs[0])]
    for eta, batch in zip(etas, stacking.batches(tasks, downs, half.batches), strict=True):
        carry = half.step(carry, batch, eta, together)
    with _turn:
        for place, task, own in zip(ready, tasks, stacking.unstack(carry, tasks), strict=True):
            outcomes[place] = attempt(_finish, clients[place], task, own)
    return outcomes


def attempt(call: Callable[..., T], *arguments: Any) -> T | Exception:
    """Return the result of a call, or its exception."""
    try:
        return call(*arguments)
    except Exception as error:
        return error


def _start(client: MethodClient[Any], task: Task[Any, Any], x: Tensor, config: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return the client's task, the server's message to it, and its carry."""
    down = client.received(config)
    return task, down, client.method.client.start(x, down, client.state, task)


def _finish(client: MethodClient[Any], task: Task[Any, Any], carry: Any) -> Fitted:
    """Return the result of the client's ``fit``."""
    arrived, client.outbox, client.state = client.method.client.finish(carry, task)
    return [ready_to_send(as_array(arrived))], len(client.site), {}
