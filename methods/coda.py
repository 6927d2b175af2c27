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

A stage pulls v towards a reference, the mean point of the stage before, while training continues from the last point.
It divides the learning rate, and starts from the lambda that is best for the scores at its first point: E[s|-] - E[s|+]
(for `AUC_MINIMAX`; other problems keep their dual block).

Where the published code and the formulas differ, the formulas are the default. That code divides lambda's gradient by
p(1-p) (``coda.scaled-dual``) and uses noise as the first stage's reference (``coda.reference-noise``).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from logging import getLogger

import numpy as np
from jaxtyping import Float, Int64
from pydantic import Field
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
from payloads.record import FloatArray, IntArray, Payload, array
from payloads.settings import Settings
from problems.minimax import AUC_MINIMAX, AUCOracle, Oracle
from problems.randomness import Purpose, stream
from problems.sampling import Indices

# the exchange before the first round of a stage: clients send sums of scores and take no step
CLASS_SCORES = "class-scores"


class CodaSettings(Settings):
    """Hyper-parameters of CoDA and CODASCA (table ``coda``)."""

    proximal: float = Field(
        0.002, ge=0, description="weight 1/gamma of the pull towards the stage's reference point, a number >= 0"
    )
    # the stages
    stage_rounds: int = Field(
        0, ge=0, description="rounds of the first stage, an integer >= 0 (0: one stage without end)"
    )
    stage_growth: float = Field(1.0, ge=1, description="factor of a stage's rounds from one to the next, a number >= 1")
    stage_decay: float = Field(3.0, ge=1, description="what each new stage divides the learning rate by, a number >= 1")
    restart_dual: bool = Field(
        True, description="true: a new stage starts from the best lambda for its scores (auc-minimax); or false"
    )
    # where the published code departs from the formula
    scaled_dual: bool = Field(
        False,
        description="true: divide lambda's gradient by p(1-p), as the published code does (auc-minimax); or false",
    )
    reference_noise: float = Field(
        0.0,
        ge=0,
        description="standard deviation of the Gaussian noise that is the first stage's reference, a number >= 0 "
        "(0: the initial model)",
    )


CodaTask = Task[CodaSettings, Oracle]
CodaPlan = Plan[CodaSettings]


@dataclass(frozen=True)
class Stage:
    """Where a round stands: the stage's number, counted from 0, and its first round."""

    index: int
    first: int


def stage_of(server_round: int, settings: CodaSettings) -> Stage:
    """Find the stage of a round; stage s has round(stage_rounds * stage_growth^s) rounds.

    Args:
        server_round: the round's number, counted from 1.
        settings: without ``stage_rounds``, stage 0 never ends.
    """
    stage = Stage(0, 1)
    while settings.stage_rounds:
        # the cap at server_round ends no stage too early and keeps the number small
        rounds = round(min(settings.stage_rounds * settings.stage_growth**stage.index, server_round))
        if server_round < stage.first + rounds:
            break
        stage = Stage(stage.index + 1, stage.first + rounds)
    return stage


@dataclass(frozen=True, eq=False)
class CodaDown(MinimaxDown):
    """Down. Without a ``reference``, the message's model is the reference."""

    reference: FloatArray | None = array("d", optional=True)


@dataclass(frozen=True, eq=False)
class ClassScores(Payload):
    """Up, in the phase `CLASS_SCORES`: a site's sum and number of scores for each class, negatives first."""

    sums: FloatArray = array(2)
    counts: IntArray = array(2, kind="int")


@dataclass(frozen=True, eq=False)
class StageState(Payload):
    """The server's state, in float64: the stage's reference, the sum of the stage's points so far, and CODASCA's c."""

    reference: FloatArray | None = array("d", optional=True)
    total: FloatArray | None = array("d", optional=True)
    control: FloatArray | None = array("d", optional=True)


@dataclass(frozen=True)
class Carry:
    """z = (v, alpha), v_0, the signs of descent and ascent, and f_i."""

    x: Float[Tensor, "*stack d"]
    reference: Float[Tensor, "*stack p"]
    signs: Float[Tensor, "*stack d"]
    f: Oracle


# The client half.


def draw_stage(task: CodaTask, down: object) -> Iterator[tuple[float, Indices]]:
    """Draw a round's mini-batches; a `ClientHalf.batches`.

    Args:
        down: what came beside the model, which has no effect.

    Returns:
        For each iteration eta_s, which includes the learning rate's own drops, and the b rows of a mini-batch.
    """
    factor = task.settings.stage_decay ** -stage_of(task.server_round, task.settings).index
    for eta, rows in draw_batches(task, down):
        yield eta * factor, rows


def start(x: Float[Tensor, "d"], down: CodaDown, memory: object, task: CodaTask) -> Carry:
    reference = x.clone() if down.reference is None else as_tensor(down.reference, x)
    return Carry(x, reference[: task.f.primal_dim], fill_blocks(task.f, -1.0, 1.0), weigh(task, down))


def compute_gradient(carry: Carry, rows: Indices, task: CodaTask) -> Float[Tensor, "*stack d"]:
    """Compute the gradient of f_i at z; ``scaled-dual`` divides its dual part by p(1-p).

    Args:
        carry: has z and f_i.
        rows: of the mini-batch.

    Returns:
        The gradient, which the next call overwrites.
    """
    f = carry.f
    gradient = f.gradient(carry.x, rows)
    if task.settings.scaled_dual and isinstance(f, AUCOracle):
        gradient[..., f.primal_dim :] /= f.prior * (1 - f.prior)
    return gradient


def step(carry: Carry, rows: Indices, eta: float, task: CodaTask) -> Carry:
    """v <- (v - eta g_v + eta/gamma v_0) / (1 + eta/gamma), alpha <- alpha + eta g_alpha."""
    carry.x.addcmul_(carry.signs, compute_gradient(carry, rows, task), value=eta)
    if pull := eta * task.settings.proximal:
        v = carry.x[..., : carry.f.primal_dim]
        v.add_(carry.reference, alpha=pull).div_(1 + pull)
    return carry


def sum_scores(x: Float[Tensor, "d"], down: CodaDown, task: CodaTask) -> ClassScores:
    """Answer the phase `CLASS_SCORES`: sum the site's scores by class.

    Args:
        x: the message's point, at which f_i already is.
        down: what came beside it, which has no effect.
        task: has f_i, which must be an `AUCOracle`.
    """
    assert isinstance(task.f, AUCOracle)
    sums, counts = task.f.class_sums()
    return ClassScores(sums=as_array(sums), counts=as_array(counts).astype(np.int64))


# The server half.


def init(x: Float[np.ndarray, "d"], plan: CodaPlan) -> StageState:
    """The first stage's reference: the initial model, or noise."""
    if not plan.settings.proximal:
        return StageState()
    noise, spread = stream(plan.training.seed, Purpose.REFERENCE_NOISE), plan.settings.reference_noise
    return StageState(reference=noise.normal(0, spread, len(x)) if spread else x.astype(np.float64))


def restarts_dual(plan: CodaPlan) -> bool:
    """Whether the round starts from a new lambda: with ``restart-dual``, the first round of each stage but stage 0.

    Args:
        plan: of the round; its loss must be `AUC_MINIMAX`, whose best lambda is known.
    """
    first = stage_of(plan.server_round, plan.settings).first
    return 1 < first == plan.server_round and plan.settings.restart_dual and plan.loss == AUC_MINIMAX


def best_dual(answers: Sequence[ClassScores], sizes: Int64[np.ndarray, "c"], plan: CodaPlan) -> float | None:
    """E[s|-] - E[s|+] over the sites that answered, weighted as in f; None where they lack a class.

    Args:
        answers: of c sites.
        sizes: the numbers of samples of these sites.
        plan: says whether sites count by their samples.
    """
    # each sample weighs 1 or, where sites have equal weights, 1 / its site's size
    weights = np.ones(len(answers)) if plan.training.by_examples else 1 / sizes
    sums = weights @ np.array([answer.sums for answer in answers], dtype=np.float64)
    counts = weights @ np.array([answer.counts for answer in answers])
    if not counts.all():
        return None
    negative, positive = sums / counts
    return float(negative - positive)


def restart_dual(x: Float[np.ndarray, "d"], plan: CodaPlan) -> Exchanges[Float[np.ndarray, "d"]]:
    """Restart lambda in the first round of every stage but the first.

    Args:
        x: The model of the round before.
        plan: The round's plan.

    Returns:
        The model, with the new lambda as its last entry if it was restarted and both classes are among the answers.
    """
    if not restarts_dual(plan):
        return x
    answers = yield Ask(CLASS_SCORES, plan.sample())
    dual = best_dual(answers.ups, plan.class_counts.sum(axis=1)[answers.places], plan)
    if dual is None:
        text = "round %d: lambda is not restarted: only one class among who answered"
        getLogger("flwr").warning(text, plan.server_round)
        return x
    return np.append(x[:-1], x.dtype.type(dual))


def tell_reference(x: Float[np.ndarray, "d"], state: StageState, plan: CodaPlan) -> Float[np.ndarray, "d"] | None:
    """Prepare v_0 for a message.

    Args:
        x: the model that the message carries.
        state: has the stage's reference, if there is a proximal term.
        plan: its loss says which part of x the proximal term pulls.

    Returns:
        The reference in the model's number type, or None where the model itself serves as the reference.
    """
    if state.reference is None:
        return None
    reference = state.reference.astype(x.dtype)
    # The proximal term acts on v only, so alpha (for auc-minimax the last entry) is left out of the comparison.
    pulled = slice(-1) if plan.loss == AUC_MINIMAX else slice(None)
    return None if np.array_equal(reference[pulled], x[pulled]) else reference


def follow_stage(state: StageState, point: Float[np.ndarray, "d"], plan: CodaPlan) -> StageState:
    """Add a round's point to the stage's sum; at the stage's end their mean is the next reference.

    Args:
        state: after the round before.
        point: the model that the round has made.
        plan: of the round.

    Returns:
        The new state; the same where there is no proximal term, or only one stage.
    """
    settings, stage = plan.settings, stage_of(plan.server_round, plan.settings)
    if not (settings.proximal and settings.stage_rounds):
        return state
    total = point.astype(np.float64) if state.total is None else state.total + point
    if stage_of(plan.server_round + 1, settings) == stage:
        return replace(state, total=total)
    return replace(state, reference=total / (plan.server_round + 1 - stage.first), total=None)


def run_round(
    x: Float[np.ndarray, "d"], state: StageState, plan: CodaPlan
) -> Exchanges[tuple[Float[np.ndarray, "d"], StageState]]:
    """alpha_s in a stage's first round, then z <- mean z_i over all sites; a `ServerHalf.round`."""
    x = yield from restart_dual(x, plan)
    replies = yield Train(CodaDown(population=count_population(plan), reference=tell_reference(x, state, plan)), x)
    point = replies.mean_point()
    return point, follow_stage(state, point, plan)


CODA = Method(
    ClientHalf(take_oracle, draw_stage, start, step, finish),
    ServerHalf(init, round=run_round),
    Records(down=CodaDown, state=StageState),
    CodaSettings,
    {CLASS_SCORES: Phase(ClassScores, sum_scores)},
    AUC_MINIMAX,
    SampleGradients(),
)
