"""What a method is: the algorithm of a paper as six pure functions over records, in two halves.

The client half is what one client computes in one round. The server half makes the next model from replies:

    carry = start(x, down, memory, task)          # from the message and the client's memory
    carry = step(carry, batch, eta, task)         # one local step: the lines of the paper's loop
    x, up, memory = finish(carry, task)           # what goes back beside x, and the new memory

    state = init(x, plan)                         # before round 1
    down = tell(x, state, plan)                   # what goes to the clients beside x
    x, state = update(x, state, replies, plan)    # the next model, from a round's replies

The functions use nothing but their arguments. `clients.base.MethodClient` and `strategies.method.MethodStrategy` are
the adapters between a `Method` and Flower.

At a client x is a tensor on the run's device, and a carry is a frozen record of such tensors. A step may change them
in place, since a carry is never used again after it was passed to a step. At the server all arrays are NumPy's.

The shapes in the annotations of this package have one language:

| axis | length |
|---|---|
| d; p | the parameters; those of x, the primal variables, which come first in a minimax method's point |
| N; c | the sites; the clients whose replies a round has |
| b; m | the samples or the positives of a batch; its partners |
| k | the components of FedX's inner estimate |
| *stack | a stack of clients: a step computes them as one, on leading axes; none for one client |
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor

from payloads.record import FloatArray, Payload
from payloads.settings import Settings, TrainingSettings
from problems.models import NUMPY_DTYPES
from problems.models.vectors import exact_mean, mean
from problems.objectives.classification import CROSS_ENTROPY
from problems.site import Site

S = TypeVar("S", bound=Settings)  # the family's settings
F = TypeVar("F")  # f_i: an object that gives its gradients at a point, on a batch
U = TypeVar("U", bound=Payload)  # what the clients send


@dataclass(frozen=True)
class Task(Generic[S, F]):
    """One client's task in one round.

    Attributes:
        server_round: the round's number, counted from 1; an exchange before round 1 has the number 0.
        training: the settings common to all algorithms.
        settings: those of the algorithm's family.
        site: the site's samples.
        f: the site's own objective f_i.
        loss: the name of the loss.
        summed: how many clients there are at least in a sum in which the server sees what this one sends; 1 if it sees
            that alone.
    """

    server_round: int
    training: TrainingSettings
    settings: S
    site: Site
    f: F
    loss: str
    summed: int = 1

    @property
    def iterations(self) -> range:
        """The numbers of the round's K local steps, counted from 0 over the whole run."""
        steps = self.training.local_steps
        return range((self.server_round - 1) * steps, self.server_round * steps)

    def eta(self, iteration: int) -> float:
        """Return the step size of a local step.

        Args:
            iteration: its number in the run, one of `iterations`.
        """
        return self.training.learning_rate_at(iteration)


@dataclass(frozen=True)
class Plan(Generic[S]):
    """What the server knows in a round, beside the model and its own state.

    Attributes:
        server_round: the round's number, counted from 1.
        training: the settings common to all algorithms.
        settings: those of the algorithm's family.
        loss: the name of the loss.
        class_counts: negatives and positives of every site, in the order of the partition ids.
        layout: names and shapes of the parts of the flat model; () if unknown.
    """

    server_round: int
    training: TrainingSettings
    settings: S
    loss: str
    class_counts: Int64[np.ndarray, "N 2"]
    layout: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class Replies(Generic[U]):
    """The good replies of a round, in the order of the partition ids.

    Attributes:
        places: the places, among the N sites, of the c clients that replied.
        points: the point of each.
        ups: the record of each.
        weights: weights for a mean over these c replies, 1 on average; None: equal weights.
        shares: weights for a mean over all N sites, 1 on average over all N; None: equal weights.
        num_sites: N.
        states_lost: whether a client lost its memory. Corrections that belong together are then reset at all clients.
    """

    places: Sequence[int]
    points: Sequence[Float[np.ndarray, "d"]]
    ups: Sequence[U]
    weights: Float64[np.ndarray, "c"] | None
    shares: Float64[np.ndarray, "c"] | None
    num_sites: int
    states_lost: bool = False

    def mean_point(self) -> Float[np.ndarray, "d"]:
        """The mean of the points, rounded once."""
        return mean(self.points, self.weights)

    def mean(self, field: str) -> FloatArray:
        """Average a field of the records; the mean is rounded once.

        Args:
            field: its name; every record must have a value there.
        """
        return mean([getattr(up, field) for up in self.ups], self.weights)

    def move(self, start: Float[np.ndarray, "d"], plan: Plan[Any]) -> Float[np.ndarray, "d"]:
        """Return start + server-learning-rate (mean of the points - start), in float64 until it is rounded.

        Args:
            start: from where the server steps; the result gets its number type.
            plan: has the server's learning rate, eta_g.
        """
        begun, rate = start.astype(np.float64), plan.training.server_learning_rate
        moved: FloatArray = (begun + rate * (exact_mean(self.points, self.weights) - begun)).astype(start.dtype)
        return moved


@dataclass(frozen=True)
class Phase:
    """An exchange besides a round's own, in which clients answer with a record and take no step.

    Attributes:
        up: the type of the record.
        answer: (x, down, task) -> the record.
    """

    up: type[Payload]
    answer: Callable[..., Payload]


def average(
    x: Float[np.ndarray, "d"], state: Any, replies: Replies[Any], plan: Plan[Any]
) -> tuple[Float[np.ndarray, "d"], Any]:
    """Do the plain server half.

    Returns:
        The mean of the points, and the state as it was.
    """
    return replies.mean_point(), state


def average_records(
    x: Float[np.ndarray, "d"], state: Any, replies: Replies[U], plan: Plan[Any]
) -> tuple[Float[np.ndarray, "d"], U]:
    """Average the points and the records, the update of a method whose state is the mean of what clients sent.

    Args:
        x: the model before the round, which has no effect.
        state: the state before the round, which has no effect.
        replies: with records that all have the same fields.
        plan: of the round; has no effect.

    Returns:
        The mean of the points, and a record with the mean of each field, which becomes the state.
    """
    first = replies.ups[0]
    return replies.mean_point(), replace(first, **{name: replies.mean(name) for name in first.arrays()})


@dataclass(frozen=True)
class SampleGradients:
    """What a method takes of a site's samples, if it takes nothing but gradients of means over single samples.

    Attributes:
        of_batch: the gradients on each of a round's K batches.
        whole: the gradients over all samples in a round.
        first: the batches before the first step of a run.
        phases: those of its phases in which nothing else of samples is taken.
    """

    of_batch: int = 1
    whole: int = 0
    first: int = 0
    phases: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ClientHalf:
    """What one client computes in one round.

    Attributes:
        objective: (model, site, loss, training, settings) -> `Task.f`.
        batches: (task, down) -> pairs (eta, batch), one for each of the round's iterations.
        start: (x, down, memory, task) -> carry.
        step: (carry, batch, eta, task) -> carry.
        finish: (carry, task) -> x, up, memory.
    """

    objective: Callable[..., Any]
    batches: Callable[[Any, Any], Iterator[tuple[float, Any]]]
    start: Callable[[Float[Tensor, "d"], Any, Any, Any], Any]
    step: Callable[[Any, Any, float, Any], Any]
    finish: Callable[[Any, Any], tuple[Float[Tensor, "d"], Any, Any]]


@dataclass(frozen=True)
class ServerHalf:
    """What the server computes. The defaults average the points, keep no state and send nothing beside the model.

    Attributes:
        init: (x, plan) -> state.
        tell: (x, state, plan) -> down.
        update: (x, state, replies, plan) -> x, state.
        output: (x, plan) -> the model to evaluate and save, made from a round's x.
    """

    init: Callable[[Float[np.ndarray, "d"], Any], Any] = lambda x, plan: None
    tell: Callable[[Float[np.ndarray, "d"], Any, Any], Any] = lambda x, state, plan: None
    update: Callable[[Float[np.ndarray, "d"], Any, Any, Any], tuple[Float[np.ndarray, "d"], Any]] = average
    output: Callable[[Float[np.ndarray, "d"], Any], Float[np.ndarray, "d"]] = lambda x, plan: x


@dataclass(frozen=True)
class Records:
    """The types of a method's records; None where there is nothing.

    Attributes:
        down, up: what travels beside the model, to the clients and back.
        memory: what a client keeps between rounds.
        state: what the server keeps between rounds.
    """

    down: type[Payload] | None = None
    up: type[Payload] | None = None
    memory: type[Payload] | None = None
    state: type[Payload] | None = None


@dataclass(frozen=True)
class Method:
    """An algorithm: its two halves, its records, and the family's own settings.

    Attributes:
        phases: the exchanges besides the rounds' own, by name.
        loss: what ``loss = "auto"`` means.
        taken: what it takes of samples; None where it is more than gradients of means over single samples, so that
            clipping single samples does not make it private.
        adjusts: whether the gradient of a step may be clipped and have weight decay; see `methods.adjustment`.
        has_adam: whether its local steps may be Adam's; see `methods.adam`.
    """

    client: ClientHalf
    server: ServerHalf = ServerHalf()
    records: Records = Records()
    settings: type[Settings] = Settings
    phases: Mapping[str, Phase] = field(default_factory=dict)
    loss: str = CROSS_ENTROPY
    taken: SampleGradients | None = None
    adjusts: bool = False
    has_adam: bool = False


def as_tensor(array: Float[np.ndarray, "*shape"], like: Tensor) -> Float[Tensor, "*shape"]:
    """Copy a received array, which may be read-only, into a tensor that a step may change.

    Args:
        array: from a record, in any number type.
        like: a tensor with the number type and the device of the copy, such as x.
    """
    own = torch.from_numpy(np.array(array, NUMPY_DTYPES[like.dtype]))
    return own if like.device.type == "cpu" else own.to(like.device)


def as_array(tensor: Shaped[Tensor, "*shape"]) -> Shaped[np.ndarray, "*shape"]:
    """View a tensor as an array, for a record or a memory.

    Args:
        tensor: of any type of numbers, which the array has as well.

    Returns:
        For a tensor on a CPU an array of the same memory, so that a later change of the one changes the other; else a
        copy.
    """
    array: np.ndarray = tensor.cpu().numpy()
    return array


def momentum_step(
    x: Float[Tensor, "*stack d"],
    momentum: Float[Tensor, "*stack d"] | None,
    gradient: Float[Tensor, "*stack d"],
    beta: float,
    eta: float,
) -> Float[Tensor, "*stack d"]:
    """m <- (1 - beta) m + beta gradient, where the first m is the first gradient; x <- x - eta m.

    Args:
        x: the point, changed in place.
        momentum: m, changed in place; None before the first step.
        gradient: at x; it may be overwritten afterwards.
        beta: the weight of the new gradient, in (0, 1].
        eta: the step size.

    Returns:
        The new m.
    """
    momentum = gradient.clone() if momentum is None else momentum.lerp_(gradient, beta)
    x.sub_(momentum, alpha=eta)
    return momentum
