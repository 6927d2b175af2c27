"""FedSGDA (Xie, Zhang, Zhang, Shen, Qian, "A Federated Learning Framework for Nonconvex-PL Minimax Problems",
Frameworks 1 to 3).

| paper | here |
|---|---|
| (x_t, y_t), one flat point z | the message's model |
| (u_t, v_t) | ``estimate`` |
| (x_{t-1}, y_{t-1}); SVRG: snapshot | ``reference`` |
| 1 - alpha_t; SPIDER and SVRG: 1 | ``weight`` |
| local gradients | ``gradient``: the gradient at z, minus weight * the gradient at ``reference`` |
| estimator E | `Estimator` |
| S'_t, S_t | the clients of the phase `GRADIENTS`, and of the round |
| c_eta, c_gamma, c_alpha, rho | ``primal_step``, ``dual_step``, ``alpha_constant``, ``rho`` |
| m, S-hat (Appendix B) | ``period``, ``large_batch`` |

f_i(x, y) is a client's objective, minimised over x and maximised over y, and g_i its gradient. A round has two
exchanges with two independent samples of clients. S'_t sends gradients, from which the estimator makes (u_t, v_t). S_t
takes K local steps, corrected by (u_t, v_t), and the mean of its points is the next point. The paper's clients send
their gradients at both points; here they send only the combination that every estimator uses. The learning rate has no
effect: the steps in x and y have their own constants.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from methods.estimators import (
    MINIBATCH,
    SPIDER,
    STORM,
    SVRG,
    Estimator,
    Question,
)
from methods.estimators import EstimatorState as EstimatorState
from methods.estimators import FedSGDASettings as FedSGDASettings
from methods.local_sgd import finish
from methods.method import Checks, ClientHalf, Method, Phase, Records, SampleGradients, Task, as_array, as_tensor
from methods.minimax import (
    MinimaxDown,
    check_saddle,
    count_population,
    draw_batches,
    fill_blocks,
    make_method,
    take_oracle,
    weigh,
)
from methods.server import Ask, Exchanges, Plan, ServerHalf, Train
from payloads.record import FloatArray, Payload, array
from payloads.settings import SCHEDULE
from problems.errors import InputError
from problems.minimax import Oracle
from problems.minimax.oracle import peek
from problems.models.vectors import exact_mean
from problems.randomness import Purpose
from problems.sampling import Indices

# the exchange before a round's main exchange: clients send gradients and take no step
GRADIENTS = "gradients"


FedSGDATask = Task[FedSGDASettings, Oracle]
FedSGDAPlan = Plan[FedSGDASettings]


@dataclass(frozen=True, eq=False)
class FedSGDADown(MinimaxDown):
    """The record sent to the clients.

    In the gradient phase: the reference point and its weight, if the estimator has a reference. In the update phase:
    the estimate.
    """

    reference: FloatArray | None = array("d", optional=True)
    weight: FloatArray | None = array(1, optional=True)
    estimate: FloatArray | None = array("d", optional=True)


@dataclass(frozen=True, eq=False)
class LocalGradient(Payload):
    """A client's answer in the gradient phase: g_i(z) - weight * g_i(reference), over all of the client's samples."""

    gradient: FloatArray = array("d", combined="mean")


# The client half.


def collect(x: Float[Tensor, "d"], down: FedSGDADown, task: Task[Any, Oracle]) -> LocalGradient:
    """Answer in the phase `GRADIENTS` (Framework 2).

    Args:
        x: z, the message's point.
        down: The message's record, with both the reference point and its weight or with neither.
        task: The client's task; the gradients are over all its samples.

    Returns:
        The gradient of f_i at z, minus weight times the gradient at the reference point.
    """
    f = weigh(task, down)
    if down.reference is None or down.weight is None:
        return LocalGradient(gradient=as_array(f.gradient(x, None).clone()))
    at_reference = peek(f, as_tensor(down.reference, x), None)
    return LocalGradient(gradient=as_array(f.gradient(x, None) - float(down.weight[0]) * at_reference))


@dataclass(frozen=True)
class Carry:
    """A client's state between two steps.

    Attributes:
        x: z^(k), the point after k steps.
        origin: z_t, the point of the message.
        estimate: (u_t, v_t).
        steps: The signed steps eta_t and gamma_t of each coordinate.
        f: f_i.
        at_origin: The gradients of f_i at z_t on each of the round's batches. None: not computed in advance.
    """

    x: Float[Tensor, "*stack d"]
    origin: Float[Tensor, "*stack d"]
    estimate: Float[Tensor, "*stack d"]
    steps: Float[Tensor, "*stack d"]
    f: Oracle
    at_origin: Sequence[Float[Tensor, "d"]] | None


class Batch(NamedTuple):
    """The b rows of a mini-batch, and the index of its gradient in `Carry.at_origin`."""

    rows: Indices
    number: int


def draw(task: Task[Any, Oracle], down: object) -> Iterator[tuple[float, Batch]]:
    """Draw a round's mini-batches; a `ClientHalf.batches`.

    Args:
        down: The record sent with the model; without effect.

    Returns:
        The learning rate, which has no effect, and the batch of each iteration. Without batch norm the first batch is
        left out, since `start` takes the first step.
    """
    for number, (eta, rows) in enumerate(islice(draw_batches(task, down), 0 if len(task.f.buffers) else 1, None)):
        yield eta, Batch(rows, number)


def start(x: Float[Tensor, "*stack d"], down: FedSGDADown, memory: None, task: FedSGDATask, rho: float) -> Carry:
    """Line 1 of Framework 3 and, without batch norm, the first step.

    The two gradients of the first step are equal and cancel, so the first step moves along (u_t, v_t) itself. With
    batch norm they are still computed, for the statistics.

    Args:
        x: z_t, the message's point.
        down: The message's record, with (u_t, v_t).
        rho: The decay of the steps if the setting is "auto"; it depends on the estimator.
    """
    f, own = weigh(task, down), task.settings
    shrink = task.server_round ** own.decay(rho)  # (t + 1)^rho
    return begin(x, down, task, f, fill_blocks(f, -own.primal_step / shrink, own.dual_step / shrink))


def begin(
    x: Float[Tensor, "*stack d"], down: FedSGDADown, task: Task[Any, Oracle], f: Oracle, steps: Float[Tensor, "d"]
) -> Carry:
    """Make the carry of a round and, without batch norm, take the first step.

    Args:
        x: z_t, the message's point.
        down: The message's record, with (u_t, v_t).
        f: f_i.
        steps: The signed steps of each coordinate.

    Raises:
        ValueError: The message has no estimate.
    """
    if down.estimate is None:
        raise ValueError("the update phase needs the server's estimate")
    origin, estimate, steps = x.clone(), as_tensor(down.estimate, x).expand_as(x), steps.expand_as(x)
    if not len(f.buffers):
        x.addcmul_(steps, estimate)
    at_origin = f.batch_gradients(origin, (batch.rows for _, batch in draw(task, down)))
    return Carry(x, origin, estimate, steps, f, at_origin)


def step(carry: Carry, batch: Batch, eta: float, task: Task[Any, Oracle]) -> Carry:
    """Lines 3 to 5 of Framework 3: x <- x - eta_t d_x and y <- y + gamma_t d_y with
    d = g_i(z^(k); B) - g_i(z_t; B) + (u_t, v_t), the same mini-batch B and the same dropout in both gradients."""
    f, known = carry.f, carry.at_origin
    at_origin = peek(f, carry.origin, batch.rows) if known is None else known[batch.number]
    carry.x.addcmul_(carry.steps, f.gradient(carry.x, batch.rows) - at_origin + carry.estimate)
    return carry


# The server half: Framework 1.


def ask(question: Question, x: Float[np.ndarray, "d"], plan: FedSGDAPlan) -> FedSGDADown | None:
    """Line 3: make the record sent to S'_t with z_t, or None if there is nothing to send.

    Args:
        question: The estimator's question in this round.
        x: z_t; the message has its number type.
    """
    population = count_population(plan)
    if question.reference is None:
        return None if population is None else FedSGDADown(population=population)
    weight = np.array([question.weight], dtype=x.dtype)
    return FedSGDADown(population=population, reference=question.reference.astype(x.dtype), weight=weight)


def estimate(
    question: Question, state: EstimatorState | None, x: Float[np.ndarray, "d"], answers: Sequence[LocalGradient]
) -> EstimatorState:
    """Line 5: make (u_t, v_t) from the answers of S'_t.

    Args:
        question: The question that the clients have answered.
        state: The state after the previous round. None in the first round.
        x: z_t, the point of the question.
        answers: The answers, one from each client, with equal weights.

    Returns:
        The new state, with z_t and (u_t, v_t). If the question asks for a snapshot, they are also the new snapshot.
    """
    collected = exact_mean([answer.gradient for answer in answers])
    value = collected if question.carry is None else question.carry + collected
    new = EstimatorState(previous=x.astype(np.float64), estimate=value)
    if question.snapshot:
        return replace(new, snapshot=new.previous, snapshot_gradient=value)
    return new if state is None else replace(new, snapshot=state.snapshot, snapshot_gradient=state.snapshot_gradient)


def run_round(
    x: Float[np.ndarray, "d"], state: EstimatorState | None, plan: FedSGDAPlan, estimator: Estimator
) -> Exchanges[tuple[Float[np.ndarray, "d"], EstimatorState]]:
    """Framework 1, lines 2 to 9; a `ServerHalf.round`.

    Args:
        estimator: E.
    """
    question = estimator.question(plan.server_round - 1, state, plan.settings)
    # line 2: S'_t
    large = plan.settings.large_batch
    count = (plan.num_sites if isinstance(large, str) else large) if question.large else None
    clients = plan.sample(Purpose.GRADIENT_CLIENTS, count)
    # lines 3 to 5: the clients' gradients, and (u_t, v_t)
    answers = yield Ask(GRADIENTS, clients, ask(question, x, plan))
    state = estimate(question, state, x, answers.ups)
    # lines 6 to 8: S_t takes K local steps
    down = FedSGDADown(population=count_population(plan), estimate=state.estimate.astype(x.dtype))
    replies = yield Train(down)
    # line 9: z_{t+1}
    return replies.mean_point(), state


def check_large_batch(plan: FedSGDAPlan) -> None:
    """Also check that a large batch has enough clients; a `Checks.sites`."""
    check_saddle(plan)
    large = plan.settings.large_batch
    if isinstance(large, int) and large > plan.num_sites:
        allowed = f"at most the number of clients, {plan.num_sites}"
        raise InputError(
            "fedsgda.large-batch", got=large, allowed=allowed, hint="lower fedsgda.large-batch, or add clients"
        )


def make_fedsgda(estimator: Estimator, sends: str) -> Method:
    """Make FedSGDA of an estimator.

    Args:
        estimator: E, the only difference between the variants.
        sends: A description of all data sent with the model.
    """
    return make_method(
        ClientHalf(take_oracle, draw, partial(start, rho=estimator.rho), step, finish),
        ServerHalf(round=partial(run_round, estimator=estimator)),
        Records(down=FedSGDADown, state=EstimatorState),
        FedSGDASettings,
        {GRADIENTS: Phase(LocalGradient, collect)},
        SampleGradients(of_batch=2, whole=estimator.points, phases=frozenset({GRADIENTS})),
        checks=Checks(sites=check_large_batch if estimator.periodic else check_saddle),
        findings=True,
        table="fedsgda",
        sends=sends,
        own_steps=("fedsgda.primal-step", "fedsgda.dual-step"),
        unread=("learning_rate", *SCHEDULE, "server_learning_rate"),
    )


_DIFFERENCE = "up: a difference of local gradients; down: the "
FEDSGDA_MB = make_fedsgda(MINIBATCH, "up: a local gradient; down: the global estimate")
FEDSGDA_STORM = make_fedsgda(STORM, f"{_DIFFERENCE}previous point, the global estimate")
FEDSGDA_SPIDER = make_fedsgda(SPIDER, f"{_DIFFERENCE}previous point, the global estimate")
FEDSGDA_SVRG = make_fedsgda(SVRG, f"{_DIFFERENCE}last snapshot, the global estimate")
