"""Adaptive steps of the server, for methods whose next model is the mean of the clients' points.

The mean minus the round's model, D, is a gradient step of the whole federation. With ``server-optimizer`` the server
takes a step along moments of D instead:

| ``server-optimizer`` | moments | step | source |
|---|---|---|---|
| none | | x + D | |
| momentum | m <- beta_1 m + D | x + eta m | Hsu, Qi, Brown 2019, FedAvgM |
| adagrad | m <- beta_1 m + (1 - beta_1) D, v <- v + D^2 | x + eta m / (sqrt(v) + tau) | Reddi et al., Algorithm 2 |
| adam | m the same, v <- beta_2 v + (1 - beta_2) D^2 | the same | the same |
| yogi | m the same, v <- v - (1 - beta_2) D^2 sign(v - D^2) | the same | the same |

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive Federated Optimization" (ICLR 2021); v begins
at tau^2. eta, beta_1, beta_2 and tau are ``server-learning-rate``, ``server-momentum``, ``server-second-momentum`` and
``server-tau``.
"""

from collections.abc import Callable
from dataclasses import dataclass, make_dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from methods.method import Exchanges, Method, Plan
from payloads.record import Payload, array, specs_of
from payloads.settings import TrainingSettings

Array = NDArray[np.float64]

_SECOND: dict[str, Callable[[Array, Array, float], Array]] = {
    "adagrad": lambda v, square, beta: v + square,
    "adam": lambda v, square, beta: beta * v + (1 - beta) * square,
    "yogi": lambda v, square, beta: v - (1 - beta) * square * np.sign(v - square),
}


@dataclass(frozen=True, eq=False)
class ServerMoments(Payload):
    """The server's moments.

    Attributes:
        first: The first moment m.
        second: The second moment v. None with momentum.
    """

    first: Array = array("d")
    second: Array | None = array("d", optional=True)


def begin(training: TrainingSettings, length: int) -> ServerMoments:
    """Return the moments before round 1.

    Args:
        training: The run's settings.
        length: The number of parameters.
    """
    adaptive = training.server_optimizer in _SECOND
    return ServerMoments(first=np.zeros(length), second=np.full(length, training.server_tau**2) if adaptive else None)


def step(
    x: Float[np.ndarray, "d"], mean: Float[np.ndarray, "d"], moments: ServerMoments, training: TrainingSettings
) -> tuple[Float[np.ndarray, "d"], ServerMoments]:
    """Return the next model, in the number type of x, and the next moments. Computed in float64.

    Args:
        x: The model before the round.
        mean: The mean of the clients' points.
        moments: The moments before the round.
        training: The run's settings.
    """
    change: Array = mean.astype(np.float64) - x
    eta, beta = training.server_learning_rate, training.server_momentum
    if moments.second is None:
        first = beta * moments.first + change
        return (x + eta * first).astype(x.dtype), ServerMoments(first=first)
    first = beta * moments.first + (1 - beta) * change
    advance = _SECOND[training.server_optimizer]
    second = advance(moments.second, np.square(change), training.server_second_momentum)
    moved = x + eta * first / (np.sqrt(second) + training.server_tau)
    return moved.astype(x.dtype), ServerMoments(first=first, second=second)


def with_server_steps(method: Method, training: TrainingSettings) -> Method:
    """Return a method whose server takes the run's steps, and keeps the moments in its state.

    Args:
        method: A method whose next model is a mean (`Traits.averages`).
        training: The run's settings.
    """
    inner: Any = method.records.state
    kept = _with_moments(inner)
    names = () if inner is None else tuple(specs_of(inner))

    def split(state: Any) -> Any:
        own = {name: getattr(state, name) for name in names}
        return None if inner is None or all(value is None for value in own.values()) else inner(**own)

    def join(state: Any, moments: ServerMoments) -> Any:
        own = {} if state is None else {name: getattr(state, name) for name in names}
        return kept(**own, first=moments.first, second=moments.second)

    def start(x: Float[np.ndarray, "d"], plan: Plan[Any]) -> Exchanges[Any]:
        return join((yield from method.server.begin(x, plan)), begin(training, len(x)))

    def run_round(x: Float[np.ndarray, "d"], state: Any, plan: Plan[Any]) -> Exchanges[Any]:
        mean, own = yield from method.server.run(x, split(state), plan)
        moved, moments = step(x, mean, state, training)
        return moved, join(own, moments)

    server = replace(method.server, prologue=start, round=run_round)
    return replace(method, server=server, records=replace(method.records, state=kept))


@cache
def _with_moments(state: Any) -> Any:
    """Return a record type with the moments, and with the fields of a method's state, which may be missing."""
    specs = {} if state is None else specs_of(state)
    own = [
        (name, Any, array(*spec.dims, kind=spec.kind, optional=True, finite=spec.finite, secret=spec.secret))
        for name, spec in specs.items()
    ]
    return make_dataclass("StateWithMoments", own, bases=(ServerMoments,), frozen=True, eq=False, kw_only=True)
