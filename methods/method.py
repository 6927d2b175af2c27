"""A method: the algorithm of a paper as pure functions over records, in two halves.

The client half is what one client computes in one round. The server half makes the next model from replies:

    carry = start(x, down, memory, task)          # from the message and the client's memory
    carry = step(carry, batch, eta, task)         # one local step: the lines of the paper's loop
    x, up, memory = finish(carry, task)           # the record sent back with x, and the new memory

    state = init(x, plan)                         # before round 1
    down = tell(x, state, plan)                   # the record sent to the clients with x
    x, state = update(x, state, replies, plan)    # the next model, from a round's replies

A method with further exchanges writes the server half of its round as a generator; see `methods.server`.

The functions depend on their arguments only. `clients.base.MethodClient` and `strategies.method.MethodStrategy` adapt a
`Method` to Flower.

At a client, x is a tensor on the run's device, and a carry is a frozen record of such tensors. A step may change them
in place, since a carry is never used again after it was passed to a step. At the server, all arrays are NumPy's.

The annotations of this package use these axes:

| axis | length |
|---|---|
| d; p | the parameters; the parameters of x, the primal variables, which come first in a minimax method's point |
| N; c | the sites; the clients that replied in a round |
| b; m | a batch's samples or positives; their partners |
| k | the components of FedX's inner estimate |
| *stack | the leading axes of a stack of clients, which a step computes together; none for one client |
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from methods.checks import Checks as Checks
from methods.server import Ask as Ask
from methods.server import Exchanges as Exchanges
from methods.server import Plan as Plan
from methods.server import Replies as Replies
from methods.server import S as S
from methods.server import ServerHalf as ServerHalf
from methods.server import Train as Train
from methods.server import average as average
from methods.server import average_records as average_records
from payloads.record import Payload
from payloads.settings import Settings, TrainingSettings
from problems.models import NUMPY_DTYPES
from problems.objectives.classification import CROSS_ENTROPY
from problems.site import Site

F = TypeVar("F")  # f_i: an object that computes its gradients at a point, on a batch


@dataclass(frozen=True)
class Task(Generic[S, F]):
    """The inputs of one client's computations in one round.

    Attributes:
        server_round: The round's number, counted from 1. An exchange before round 1 has the number 0.
        training: The settings common to all algorithms.
        settings: The settings of the algorithm's family.
        site: The site's samples.
        f: The site's objective f_i.
        loss: The name of the loss.
        summed: With secure sums, the minimum number of clients in each sum that the server sees. 1: the server sees
            each client's values.
        stretch: With ``steps-by-rows``, the mean number of the sites' local steps divided by the number of this
            client's, ``training.local_steps``. The client sends x + stretch (its trained point - x).
    """

    server_round: int
    training: TrainingSettings
    settings: S
    site: Site
    f: F
    loss: str
    summed: int = 1
    stretch: float = 1.0

    @property
    def iterations(self) -> range:
        """The numbers of the round's K local steps, counted from 0 over the whole run."""
        steps = self.training.local_steps
        return range((self.server_round - 1) * steps, self.server_round * steps)

    def eta(self, iteration: int) -> float:
        """Return the step size of a local step.

        Args:
            iteration: The step's number in the run, one of `iterations`.
        """
        return self.training.learning_rate_at(iteration)


@dataclass(frozen=True)
class Phase:
    """An additional exchange, in which clients answer with a record and take no step.

    Attributes:
        up: The type of the record.
        answer: (x, down, task) -> the record.
    """

    up: type[Payload]
    answer: Callable[..., Payload]


@dataclass(frozen=True)
class SampleGradients:
    """The numbers of gradients that a method computes from a site's samples, for differential privacy's accountant.

    Only for methods that use samples in no other way than by gradients of means over samples.

    Attributes:
        of_batch: The number of gradients on each of a round's K batches.
        whole: The number of gradients over all samples in a round.
        first: The number of additional batches before the first step of a run.
        phases: The phases that use samples only by such gradients.
    """

    of_batch: int = 1
    whole: int = 0
    first: int = 0
    phases: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ClientHalf:
    """The computations of one client in one round.

    Attributes:
        objective: (model, site, loss, training, settings) -> `Task.f`.
        batches: (task, down) -> pairs (eta, batch), one pair for each of the round's iterations.
        start: (x, down, memory, task) -> carry.
        step: (carry, batch, eta, task) -> carry.
        finish: (carry, task) -> x, up, memory.
    """

    objective: Callable[..., Any]
    batches: Callable[[Any, Any], Iterator[tuple[float, Any]]]
    start: Callable[[Float[Tensor, "*stack d"], Any, Any, Any], Any]
    step: Callable[[Any, Any, float, Any], Any]
    finish: Callable[[Any, Any], tuple[Float[Tensor, "*stack d"], Any, Any]]


@dataclass(frozen=True)
class Records:
    """The types of a method's records; None for a record that the method does not have.

    Attributes:
        down, up: The records sent with the model, to the clients and back.
        memory: A client's memory between rounds.
        state: The server's state between rounds.
    """

    down: type[Payload] | None = None
    up: type[Payload] | None = None
    memory: type[Payload] | None = None
    state: type[Payload] | None = None


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The properties of an algorithm other than its computations.

    Attributes:
        table: The run-config table of the algorithm's settings; "" if it has none.
        losses: The losses that it can minimise.
        loss: The meaning of ``loss = "auto"`` for labels that are classes.
        offsets: Whether the method adds ``offset-column`` to the scores.
        findings: Whether the method trains several binary labels, of ``label-columns``.
        sends: A description of all data sent with the model.
        default_step: The meaning of ``learning-rate = "auto"``.
        own_steps: The method's own keys of step sizes.
        unread: The common settings without effect.
        number_types: The values of ``dtype`` that it can compute in.
        precise: Whether a table's features keep 64 bits; otherwise they are rounded to float32.
        keeps_norms: Whether clients can keep their batch norms: only the model is sent, and its mean is the next model.
        averages: Whether the next model is the mean of the clients' points, so ``server-optimizer`` can change it.
        plain_clients: Whether clients need only train the received model: the messages carry nothing else, and the next
            model is a mean of the trained models.
        models: The networks that it can train. The first is the meaning of ``model = "auto"``. (): all.
        scales: The values of ``scale`` that it supports. The first is the meaning of ``scale = "auto"``. (): all.
        needs_all_clients: The reason why every client must take part in every round, as the end of a sentence that
            begins with the strategy's name. "": a few clients a round are enough.
        retries_failed: Whether a client without a good reply is asked again, up to ``max-retries`` times, before the
            run ends.
        joint_states: Whether the sum of the clients' memories matters. If a memory is lost, all clients then discard
            their memories.
        equal_steps: The reason why ``steps-by-rows`` must be false, as the end of a sentence that begins with the
            strategy's name. "": sites may take different numbers of local steps.
        needs_examples: The reason why ``client-weights`` must be "examples", as the end of a sentence that begins with
            the strategy's name. "": both values are supported.
        weighted_gradients: Whether gradients already include their site's weight by samples, so means over sites are
            plain.
        sums_instead: The change of the run config with which the method supports secure sums, as an error's hint.
        objection: The reason why a model must not be clipped or noised in transit.
    """

    table: str = ""
    losses: tuple[str, ...] = (CROSS_ENTROPY,)
    loss: str = CROSS_ENTROPY
    offsets: bool = False
    findings: bool = False
    sends: str = "nothing"
    default_step: float = 0.3
    own_steps: tuple[str, ...] = ()
    unread: tuple[str, ...] = ("server_learning_rate", "score")
    number_types: tuple[str, ...] = ("float32", "float64")
    precise: bool = False
    keeps_norms: bool = False
    averages: bool = False
    plain_clients: bool = False
    models: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()
    needs_all_clients: str = ""
    retries_failed: bool = False
    joint_states: bool = False
    equal_steps: str = ""
    needs_examples: str = ""
    weighted_gradients: bool = False
    sums_instead: str = "choose another strategy"
    objection: str = ""


@dataclass(frozen=True)
class Method(Traits):
    """An algorithm: its two halves, its records, its family's settings, and its traits.

    Attributes:
        phases: The additional exchanges, by name.
        taken: The gradients that the method computes from samples. None: the method uses samples in other ways, too, so
            clipping each sample's gradient does not make it private.
        adjusts: Whether a step's gradient may be clipped and have weight decay; see `methods.adjustment`.
        has_adam: Whether local steps may be Adam's; see `methods.adam`.
        stacked: Whether `ClientHalf.start` and `ClientHalf.finish`, like `step`, also work on a stack of clients: on a
            block of points, with records whose floats have a first axis of clients, and a task whose site can only draw
            batches.
        checks: The server's checks.
        choose: (method, settings, loss) -> the variant of the method for a run's settings and loss. None: there is a
            single variant.
    """

    client: ClientHalf
    server: ServerHalf = field(default_factory=ServerHalf)
    records: Records = Records()
    settings: type[Settings] = Settings
    phases: Mapping[str, Phase] = field(default_factory=dict)
    taken: SampleGradients | None = None
    adjusts: bool = False
    has_adam: bool = False
    stacked: bool = False
    checks: Checks = field(default_factory=Checks)
    choose: Callable[["Method", Any, str], "Method"] | None = None

    def of(self, settings: Any, loss: str = "") -> "Method":
        """Return the variant of the method for a run.

        Args:
            settings: The run's settings of the method's family.
            loss: The name of the run's loss. "": unknown.
        """
        return self if self.choose is None else self.choose(self, settings, loss)


def as_tensor(array: Float[np.ndarray, "*shape"], like: Tensor) -> Float[Tensor, "*shape"]:
    """Copy a received array, which may be read-only, into a tensor that a step may change.

    Args:
        array: An array from a record, in any number type.
        like: A tensor with the number type and the device of the copy, such as x.
    """
    own = torch.from_numpy(np.array(array, NUMPY_DTYPES[like.dtype]))
    return own if like.device.type == "cpu" else own.to(like.device)


def as_array(tensor: Shaped[Tensor, "*shape"]) -> Shaped[np.ndarray, "*shape"]:
    """View a tensor as an array of the same number type, for a record or a memory.

    Args:
        tensor: The tensor.

    Returns:
        For a tensor on a CPU, an array that shares its memory: a change of either changes both. Otherwise a copy.
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
    """Take a step along the momentum: m <- (1 - beta) m + beta gradient, x <- x - eta m. The first m is the gradient.

    Args:
        x: The point, changed in place.
        momentum: m, changed in place; None before the first step.
        gradient: The gradient at x; it may be overwritten afterwards.
        beta: The weight of the new gradient, in (0, 1].
        eta: The step size.

    Returns:
        The new m.
    """
    momentum = gradient.clone() if momentum is None else momentum.lerp_(gradient, beta)
    x.sub_(momentum, alpha=eta)
    return momentum
