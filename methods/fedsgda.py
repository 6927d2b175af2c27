"""FedSGDA (Xie, Zhang, Zhang, Shen, Qian, "A Federated Learning Framework for Nonconvex-PL Minimax Problems",
Frameworks 1 to 3).

| paper | here |
|---|---|
| (x_t, y_t), one flat point z | the message's model |
| (u_t, v_t) | ``estimate`` |
| (x_{t-1}, y_{t-1}); SVRG: snapshot | ``reference`` |
| 1 - alpha_t; SPIDER and SVRG: 1 | ``weight`` |
| local gradients | ``gradient``: at z, minus weight * that at ``reference`` |
| estimator E | `Estimator` |
| S'_t, S_t | the clients of the phase `GRADIENTS`, and of the round |
| c_eta, c_gamma, c_alpha, rho | ``primal_step``, ``dual_step``, ``alpha_constant``, ``rho`` |
| m, S-hat (Appendix B) | ``period``, ``large_batch`` |

A round has two exchanges with two independent samples of clients: S'_t sends gradients, from which the estimator makes
(u_t, v_t); S_t takes K local steps, corrected by (u_t, v_t), and the mean of its points is the next point. The paper's
clients send their gradients at both points; here they send only the combination of both that every estimator uses. The
learning rate has no effect: the steps in x and y have constants of their own.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Annotated, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Float64
from pydantic import Field, PositiveInt
from torch import Tensor

from methods.local_sgd import finish
from methods.method import (
    Ask,
    ClientHalf,
    Exchanges,
    Method,
    Phase,
    Plan,
    Records,
    SampleGradients,
    ServerHalf,
    Task,
    Train,
    as_array,
    as_tensor,
)
from methods.minimax import MinimaxDown, count_population, draw_batches, fill_blocks, take_oracle, weigh
from payloads.record import FloatArray, Payload, array
from payloads.settings import Settings
from problems.minimax import AUC_MINIMAX, Oracle
from problems.minimax.oracle import peek
from problems.models.vectors import exact_mean
from problems.randomness import Purpose
from problems.sampling import Indices

# the exchange before a round's own: clients send gradients and take no step
GRADIENTS = "gradients"


class FedSGDASettings(Settings):
    """Hyper-parameters of FedSGDA (table ``fedsgda``); step sizes in round t = 0, 1, ... are constant / (t + 1)^rho."""

    primal_step: float = Field(0.1, gt=0, description="constant of the step in x, a number > 0")
    dual_step: float = Field(0.1, gt=0, description="constant of the step in y, a number > 0")
    alpha_constant: float = Field(
        1.0, gt=0, description="constant of storm's alpha_t = min(1, constant / (t + 1)^(2 rho)), a number > 0"
    )
    rho: Annotated[float, Field(ge=0, lt=1)] | Literal["auto"] = Field(
        "auto", description="decay of the steps, a number in [0, 1), or auto: 1/3 for storm, 0 for the others"
    )
    period: int = Field(10, ge=1, description="rounds from one large batch to the next, an integer >= 1 (spider, svrg)")
    large_batch: PositiveInt | Literal["auto"] = Field(
        "auto", description="clients of a large batch, an integer >= 1, or auto: all (spider, svrg)"
    )

    def decay(self, auto: float) -> float:
        """Return rho.

        Args:
            auto: an estimator's default, which the setting "auto" means.
        """
        return auto if isinstance(self.rho, str) else self.rho


FedSGDATask = Task[FedSGDASettings, Oracle]
FedSGDAPlan = Plan[FedSGDASettings]


@dataclass(frozen=True, eq=False)
class FedSGDADown(MinimaxDown):
    """Down: in the gradient phase the reference point and its weight, where the estimator has one; in the update phase
    the estimate."""

    reference: FloatArray | None = array("d", optional=True)
    weight: FloatArray | None = array(1, optional=True)
    estimate: FloatArray | None = array("d", optional=True)


@dataclass(frozen=True, eq=False)
class LocalGradient(Payload):
    """Up, in the gradient phase: g_i(z) - weight * g_i(reference), each over all of the client's samples."""

    gradient: FloatArray = array("d", combined="mean")


@dataclass(frozen=True, eq=False)
class EstimatorState(Payload):
    """The server's state, in float64: the last point and estimate; for SVRG also the snapshot and its gradient."""

    previous: FloatArray = array("d")
    estimate: FloatArray = array("d")
    snapshot: FloatArray | None = array("d", optional=True)
    snapshot_gradient: FloatArray | None = array("d", optional=True)


# The estimators. All have one form,
#
#     estimate_t = carry_t + mean_i [ g_i(z_t) - weight_t * g_i(reference_t) ],
#
# where the same clients compute both gradients.


@dataclass(frozen=True)
class Question:
    """What an estimator asks clients for in a gradient phase, and what it adds to the mean of their answers.

    Attributes:
        reference: the second point, or None.
        weight: what the gradient there is multiplied by; 0 without a reference.
        carry: the term to add, or None.
        large: whether to ask a large batch of clients.
        snapshot: whether to keep the round's point and estimate as the snapshot.
    """

    reference: Float64[np.ndarray, "d"] | None = None
    weight: float = 0.0
    carry: Float64[np.ndarray, "d"] | None = None
    large: bool = False
    snapshot: bool = False


@dataclass(frozen=True)
class Estimator:
    """A gradient estimator.

    Attributes:
        question: (t, state, settings) -> what to ask in round t = 0, 1, ..., given the state after the round before.
        points: at how many points it takes gradients, at most.
        rho: the decay of the steps that ``fedsgda.rho = "auto"`` means.
        periodic: whether it takes a large batch every ``fedsgda.period`` rounds.
    """

    question: Callable[[int, EstimatorState | None, FedSGDASettings], Question]
    points: int = 2
    rho: float = 0.0
    periodic: bool = False


def ask_minibatch(t: int, state: EstimatorState | None, settings: FedSGDASettings) -> Question:
    """mean g_i(z_t), without a second point."""
    return Question()


def alpha(t: int, settings: FedSGDASettings) -> float:
    """alpha_t = beta_t = min(1, c_alpha / (t + 1)^(2 rho)).

    Args:
        t: the round, counted from 0; round 0, which has no estimate before it, takes 1 instead.
        settings: have c_alpha and rho.
    """
    return min(1.0, settings.alpha_constant / math.pow(t + 1, 2 * settings.decay(STORM.rho)))


def ask_storm(t: int, state: EstimatorState | None, settings: FedSGDASettings) -> Question:
    """(1 - alpha_t) (estimate_{t-1} - mean g_i(z_{t-1})) + mean g_i(z_t) (Cutkosky and Orabona 2019)."""
    weight = 1.0 - alpha(t, settings)
    if state is None or weight == 0:
        return Question()
    return Question(state.previous, weight, weight * state.estimate)


def ask_spider(t: int, state: EstimatorState | None, settings: FedSGDASettings) -> Question:
    """Every ``period`` rounds the mean over a large batch, else estimate_{t-1} + mean [g_i(z_t) - g_i(z_{t-1})]
    (Fang, Li, Lin, Zhang 2018; the paper's Appendix B)."""
    if state is None or t % settings.period == 0:
        return Question(large=True)
    return Question(state.previous, 1.0, state.estimate)


def ask_svrg(t: int, state: EstimatorState | None, settings: FedSGDASettings) -> Question:
    """Every ``period`` rounds a snapshot with its mean over a large batch, else the snapshot's mean +
    mean [g_i(z_t) - g_i(snapshot)] (Johnson and Zhang 2013; the paper's Remark 1)."""
    if state is None or t % settings.period == 0:
        return Question(large=True, snapshot=True)
    return Question(state.snapshot, 1.0, state.snapshot_gradient)


MINIBATCH = Estimator(ask_minibatch, points=1)
STORM = Estimator(ask_storm, rho=1 / 3)
SPIDER = Estimator(ask_spider, periodic=True)
SVRG = Estimator(ask_svrg, periodic=True)


# The client half.


def collect(x: Float[Tensor, "d"], down: FedSGDADown, task: FedSGDATask) -> LocalGradient:
    """Framework 2, the answer in the phase `GRADIENTS`.

    Args:
        x: z, the message's point.
        down: the reference point and its weight, or neither.
        task: of the client; the gradients are over all of its samples.

    Returns:
        The gradient of f_i at z, minus weight times that at the reference point.
    """
    f = weigh(task, down)
    if down.reference is None or down.weight is None:
        return LocalGradient(gradient=as_array(f.gradient(x, None).clone()))
    other = peek(f, as_tensor(down.reference, x), None)
    return LocalGradient(gradient=as_array(f.gradient(x, None) - float(down.weight[0]) * other))


@dataclass(frozen=True)
class Carry:
    """z^(k), z_t, (u_t, v_t), the signed steps eta_t and gamma_t, f_i, and its gradients at z_t on each of the round's
    batches, where they were computed together."""

    x: Float[Tensor, "*stack d"]
    origin: Float[Tensor, "*stack d"]
    estimate: Float[Tensor, "*stack d"]
    steps: Float[Tensor, "*stack d"]
    f: Oracle
    at_origin: Sequence[Float[Tensor, "d"]] | None


class Batch(NamedTuple):
    """The b rows of a mini-batch, and the place of its gradient in `Carry.at_origin`."""

    rows: Indices
    place: int


def draw(task: FedSGDATask, down: object) -> Iterator[tuple[float, Batch]]:
    """Draw a round's mini-batches; a `ClientHalf.batches`.

    Args:
        down: what came beside the model, which has no effect.

    Returns:
        The learning rate, which has no effect, and the batch of each iteration. Without batch norm the first is left
        out, since `start` takes that step.
    """
    for place, (eta, rows) in enumerate(islice(draw_batches(task, down), 0 if len(task.f.buffers) else 1, None)):
        yield eta, Batch(rows, place)


def start(x: Float[Tensor, "d"], down: FedSGDADown, memory: None, task: FedSGDATask, rho: float) -> Carry:
    """Line 1 of Framework 3 and, without batch norm, the first step.

    The two gradients of the first step are equal and cancel, so that it goes along (u_t, v_t) itself. Batch norm needs
    them all the same, for its statistics.

    Args:
        x: z_t, the message's point.
        down: has (u_t, v_t).
        rho: the decay of the steps where the setting is "auto", which depends on the estimator.

    Raises:
        ValueError: the message has no estimate.
    """
    if down.estimate is None:
        raise ValueError("FedSGDA's update phase needs the server's estimate")
    f, own, origin, estimate = weigh(task, down), task.settings, x.clone(), as_tensor(down.estimate, x)
    shrink = task.server_round ** own.decay(rho)  # (t + 1)^rho
    steps = fill_blocks(f, -own.primal_step / shrink, own.dual_step / shrink)
    if not len(f.buffers):
        x.addcmul_(steps, estimate)
    at_origin = f.batch_gradients(origin, (batch.rows for _, batch in draw(task, down)))
    return Carry(x, origin, estimate, steps, f, at_origin)


def step(carry: Carry, batch: Batch, eta: float, task: FedSGDATask) -> Carry:
    """Lines 3 to 5 of Framework 3: x <- x - eta_t d_x and y <- y + gamma_t d_y with
    d = g_i(z^(k); B) - g_i(z_t; B) + (u_t, v_t), the same mini-batch B and the same dropout in both gradients."""
    f, known = carry.f, carry.at_origin
    other = peek(f, carry.origin, batch.rows) if known is None else known[batch.place]
    carry.x.addcmul_(carry.steps, f.gradient(carry.x, batch.rows) - other + carry.estimate)
    return carry


# The server half: Framework 1.


def ask(question: Question, x: Float[np.ndarray, "d"], plan: FedSGDAPlan) -> FedSGDADown | None:
    """Line 3: what goes to S'_t beside z_t, or None for nothing.

    Args:
        question: of the estimator in this round.
        x: z_t, whose number type the message gets.
    """
    population = count_population(plan)
    if question.reference is None:
        return None if population is None else FedSGDADown(population=population)
    weight = np.array([question.weight], dtype=x.dtype)
    return FedSGDADown(population=population, reference=question.reference.astype(x.dtype), weight=weight)


def estimate(
    question: Question, state: EstimatorState | None, x: Float[np.ndarray, "d"], answers: Sequence[LocalGradient]
) -> EstimatorState:
    """Line 5: (u_t, v_t), from the answers of S'_t to a question.

    Args:
        question: what was asked.
        state: after the round before; None in the first round.
        x: z_t, at which it was asked.
        answers: one of each client, which all count the same.

    Returns:
        The new state, with z_t and (u_t, v_t), and with both as the new snapshot where the question says so.
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
    count = (plan.num_sites if large == "auto" else large) if question.large else None
    clients = plan.sample(Purpose.GRADIENT_CLIENTS, count)
    # lines 3 to 5: the clients' gradients, and (u_t, v_t)
    answers = yield Ask(GRADIENTS, clients, ask(question, x, plan))
    state = estimate(question, state, x, answers.ups)
    # lines 6 to 8: S_t takes K local steps
    down = FedSGDADown(population=count_population(plan), estimate=state.estimate.astype(x.dtype))
    replies = yield Train(down)
    # line 9: z_{t+1}
    return replies.mean_point(), state


def make_method(estimator: Estimator) -> Method:
    """Make FedSGDA of an estimator.

    Args:
        estimator: E; the rest of the method is the same for all.
    """
    return Method(
        ClientHalf(take_oracle, draw, partial(start, rho=estimator.rho), step, finish),
        ServerHalf(round=partial(run_round, estimator=estimator)),
        Records(down=FedSGDADown, state=EstimatorState),
        FedSGDASettings,
        {GRADIENTS: Phase(LocalGradient, collect)},
        AUC_MINIMAX,
        SampleGradients(of_batch=2, whole=estimator.points, phases=frozenset({GRADIENTS})),
    )
