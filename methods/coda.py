"""CoDA (Guo, Liu, Yuan, Shen, Liu, Yang, "Communication-Efficient Distributed Stochastic AUC Maximization with Deep
Neural Networks", ICML 2020): local proximal descent ascent, stage by stage.

| paper | here |
|---|---|
| (v, alpha), one flat point z | the message's model |
| v_0 of a stage | ``reference`` |
| 1 / gamma | ``proximal`` |
| eta_s = eta_0 / 3^s | ``learning-rate`` and ``stage_decay`` |
| T_s / I, rounds of stage s | ``stage_rounds`` and ``stage_growth`` |
| alpha_s between two stages | ``restart_dual``, from `ClassScores` |
| I | ``local-steps`` |

v are the primal variables (the weights and two scalars), alpha is the dual variable (lambda in `problems.minimax.auc`).
A stage pulls v towards a reference, the mean point of the previous stage, while training continues from the last point.
Each new stage divides the learning rate, and starts from the best alpha for the scores s at its first point: the mean
score of negatives minus the mean score of positives, E[s|-] - E[s|+] (for `AUC_MINIMAX`; other problems keep alpha).

If the published code and the paper's formulas differ, the formulas are the default. The code divides alpha's gradient
by p(1-p), with p the share of positives (``coda.scaled-dual``), and uses noise as the first stage's reference
(``coda.reference-noise``).

The paper's clients all take part in every round. Here some of them may, also in turns (``client-sampling = "cyclic"``,
as in Vangapally, Wu, Chen, Guo, TMLR 2026): each f_i includes its site's weight, so means over a sample are unbiased.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from logging import getLogger

import numpy as np
from jaxtyping import Float, Float64
from torch import Tensor

from methods.adam import Point, adam_step
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
from methods.server import Ask, Exchanges, ServerHalf, Train
from methods.stages import CodaPlan as CodaPlan
from methods.stages import CodaSettings as CodaSettings
from methods.stages import StageState as StageState
from methods.stages import follow_stage as follow_stage
from methods.stages import init, stage_of, tell_reference
from payloads.record import FloatArray, IntArray, Payload, PayloadError, array
from problems.errors import InputError
from problems.minimax import AUC_MINIMAX, AUCOracle, Oracle
from problems.sampling import Indices

# the exchange before the first round of a stage: clients send sums of scores and take no step
CLASS_SCORES = "class-scores"


CodaTask = Task[CodaSettings, Oracle]


@dataclass(frozen=True, eq=False)
class CodaDown(MinimaxDown):
    """The record sent to the clients. Without a ``reference``, the message's model is the reference."""

    reference: FloatArray | None = array("d", optional=True)


@dataclass(frozen=True, eq=False)
class ClassScores(Payload):
    """A client's answer in the phase `CLASS_SCORES`: the sum and the number of its scores by class, negatives first."""

    sums: FloatArray = array(2)
    counts: IntArray = array(2, kind="int")


@dataclass(frozen=True, kw_only=True)
class Carry(Point):
    """A client's state between two steps: z = (v, alpha), v_0, the signs of descent and ascent, and f_i."""

    reference: Float[Tensor, "*stack p"]
    signs: Float[Tensor, "*stack d"]
    f: Oracle


# The client half.


def draw_stage(task: CodaTask, down: object) -> Iterator[tuple[float, Indices]]:
    """Draw a round's mini-batches; a `ClientHalf.batches`.

    Args:
        down: The record sent with the model; without effect.

    Returns:
        For each iteration eta_s, which includes the learning rate's own drops, and the b rows of a mini-batch.
    """
    factor = task.settings.stage_decay ** -stage_of(task.server_round, task.settings).index
    for eta, rows in draw_batches(task, down):
        yield eta * factor, rows


def start(x: Float[Tensor, "*stack d"], down: CodaDown, memory: object, task: CodaTask) -> Carry:
    reference = x.clone() if down.reference is None else as_tensor(down.reference, x).expand_as(x)
    signs, f = fill_blocks(task.f, -1.0, 1.0).expand_as(x), weigh(task, down)
    return Carry(x=x, reference=reference[..., : f.primal_dim], signs=signs, f=f)


def compute_gradient(carry: Carry, rows: Indices, task: CodaTask) -> Float[Tensor, "*stack d"]:
    """Compute the gradient of f_i at z; ``scaled-dual`` divides its dual part by p(1-p).

    Args:
        carry: The step's carry; provides z and f_i.
        rows: The rows of the mini-batch.

    Returns:
        The gradient, which the next call overwrites.
    """
    f = carry.f
    gradient = f.gradient(carry.x, rows)
    if task.settings.scaled_dual and isinstance(f, AUCOracle):
        gradient[..., f.primal_dim :] /= f.prior * (1 - f.prior)
    return gradient


def step(carry: Carry, rows: Indices, eta: float, task: CodaTask) -> Carry:
    """v <- (v - eta g_v + eta/gamma v_0) / (1 + eta/gamma), alpha <- alpha + eta g_alpha. Adam may scale g."""
    gradient = compute_gradient(carry, rows, task)
    if task.training.has_adam:
        carry = adam_step(carry, gradient.mul_(carry.signs).neg_(), eta)
    else:
        carry.x.addcmul_(carry.signs, gradient, value=eta)
    if pull := eta * task.settings.proximal:
        v = carry.x[..., : carry.f.primal_dim]
        v.add_(carry.reference, alpha=pull).div_(1 + pull)
    return carry


def sum_scores(x: Float[Tensor, "d"], down: CodaDown, task: CodaTask) -> ClassScores:
    """Answer the phase `CLASS_SCORES`: sum the site's scores by class.

    Args:
        x: The message's point, which f_i has loaded.
        down: The record sent with the model; without effect.
        task: The client's task; its f_i must be an `AUCOracle`.
    """
    assert isinstance(task.f, AUCOracle)
    sums, counts = task.f.class_sums()
    return ClassScores(sums=as_array(sums), counts=as_array(counts).astype(np.int64))


# The server half.


def restarts_dual(plan: CodaPlan) -> bool:
    """Return whether the round starts from a new alpha: with ``restart-dual``, in the first round of each new stage.

    Only for the loss `AUC_MINIMAX`, for which the best alpha is known.
    """
    first = stage_of(plan.server_round, plan.settings).first
    return 1 < first == plan.server_round and plan.settings.restart_dual and plan.loss == AUC_MINIMAX


def best_dual(answers: Sequence[ClassScores], sizes: Float64[np.ndarray, "c"], plan: CodaPlan) -> float | None:
    """Return the best alpha, E[s|-] - E[s|+], over the sites that answered; None if they have only one class.

    Args:
        answers: The answers of c sites.
        sizes: The sizes of these sites, 1 on average over all sites.
        plan: The round's plan. Its setting ``client-weights`` determines whether sites count by their samples, as in f.
    """
    # each sample has the weight 1 or, if sites have equal weights, 1 / its site's size
    weights = np.ones(len(answers)) if plan.training.by_examples else 1 / sizes
    sums = weights @ np.array([answer.sums for answer in answers], dtype=np.float64)
    counts = weights @ np.array([answer.counts for answer in answers])
    if not counts.all():
        return None
    negative, positive = sums / counts
    return float(negative - positive)


def restart_dual(x: Float[np.ndarray, "d"], plan: CodaPlan) -> Exchanges[Float[np.ndarray, "d"]]:
    """Restart alpha in the first round of every stage but the first.

    Args:
        x: The result of the previous round.
        plan: The round's plan.

    Returns:
        The model. If alpha was restarted and the answers contain both classes, the last entry is the new alpha.
    """
    if not restarts_dual(plan):
        return x
    answers = yield Ask(CLASS_SCORES, plan.sample())
    sizes = plan.class_counts.sum(axis=1)
    dual = best_dual(answers.ups, (plan.num_sites * sizes / sizes.sum())[answers.clients], plan)
    if dual is None:
        text = "round %d: lambda is not restarted: the sites that answered have only one class"
        getLogger("flwr").warning(text, plan.server_round)
        return x
    return np.append(x[:-1], x.dtype.type(dual))


def run_round(
    x: Float[np.ndarray, "d"], state: StageState, plan: CodaPlan
) -> Exchanges[tuple[Float[np.ndarray, "d"], StageState]]:
    """Restart alpha in a stage's first round, then z <- mean z_i over these clients; a `ServerHalf.round`."""
    x = yield from restart_dual(x, plan)
    replies = yield Train(CodaDown(population=count_population(plan), reference=tell_reference(x, state, plan)), x)
    point = replies.mean_point()
    return point, follow_stage(state, point, plan)


def check_scores(record: Payload, model: object, plan: CodaPlan) -> None:
    """Check an answer of the phase `CLASS_SCORES`; a `Checks.record`."""
    if isinstance(record, ClassScores) and (record.counts < 0).any():
        raise PayloadError(f"ClassScores.counts: got {record.counts.tolist()}, expected numbers >= 0")


def check_sites(plan: CodaPlan) -> None:
    """Check the sites, and that no stage restarts alpha if there are several findings; a `Checks.sites`."""
    check_saddle(plan)
    if plan.finding_counts is not None and plan.settings.stage_rounds and plan.settings.restart_dual:
        allowed, hint = "false with label-columns and several stages", "set coda.restart-dual to false"
        raise InputError("coda.restart-dual", got="true", allowed=allowed, hint=hint)


def choose(method: Method, settings: CodaSettings, loss: str) -> Method:
    """Drop the phase `CLASS_SCORES` if no stage restarts alpha; a `Method.choose`."""
    return method if settings.stage_rounds and settings.restart_dual else replace(method, phases={})


CODA = make_method(
    ClientHalf(take_oracle, draw_stage, start, step, finish),
    ServerHalf(init, round=run_round),
    Records(down=CodaDown, state=StageState),
    CodaSettings,
    {CLASS_SCORES: Phase(ClassScores, sum_scores)},
    SampleGradients(),
    checks=Checks(sites=check_sites, record=check_scores),
    choose=choose,
    has_adam=True,
    findings=True,
    table="coda",
    sends="down: the stage's reference point; up, between stages: class sums of scores",
    sums_instead="set coda.stage-rounds to 0, or coda.restart-dual to false",
)
