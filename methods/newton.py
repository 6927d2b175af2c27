"""Exact regression by sums: Newton's method on the likelihood of all rows, which stay at their sites.

Sources: McCullagh and Nelder, "Generalized Linear Models", 2nd edition, 1989 (iteratively reweighted least squares);
Wolfson et al., "DataSHIELD: resolving a conflict in contemporary bioscience", International Journal of Epidemiology 39,
2010 (the sums of sites). With a canonical link, iteratively reweighted least squares is Newton's method.

A round: the server sends the coefficients x; each client answers with the score s_i, the information H_i and the
deviance of its rows at x; the server adds them up and solves (sum H_i + ridge) step = sum s_i - ridge x. If the
deviance has risen, the step is halved instead. Round 1 starts from the outcomes: x is the weighted least squares fit of
working outcomes. After the last step further exchanges sum the standard errors and the sites' own estimates.

| text | here |
|---|---|
| x, the coefficients | ``point``; the model's flat vector |
| s_i, H_i | ``score``, ``information`` of `NewtonSums` |
"""

from dataclasses import replace
from logging import getLogger
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float, Float64

from methods.method import Checks, ClientHalf, Method, Phase, Records
from methods.newton_alone import answer_estimate
from methods.newton_client import Design, answer_variance, finish, no_batches, start, step
from methods.newton_records import (
    NewtonQuestion,
    NewtonSettings,
    NewtonState,
    NewtonSums,
    NewtonVariance,
    SiteEstimate,
    triangle,
    whole,
)
from methods.newton_table import between_sites, describe
from methods.newton_terms import Terms
from methods.server import Ask, Exchanges, Plan, Replies, ServerHalf, Train
from methods.solving import SingularError, solve
from payloads.limbs import LIMBS
from payloads.record import PayloadError
from payloads.settings import SCHEDULE, TrainingSettings
from problems.errors import InputError
from problems.objectives.regression import REGRESSIONS

# the exchanges after the last step
VARIANCE, SITE_ESTIMATES, RANDOM_EFFECTS = "variance", "site-estimates", "random-effects"
# a rise of the objective that counts as rounding
_ROUNDING = 1e-10
# Outcomes are separated if steps stay as long as _LONG although the log likelihood can rise by _GAIN at most.
_LONG, _GAIN = 0.3, 0.05

NewtonPlan = Plan[NewtonSettings]
N = TypeVar("N", bound=NewtonState)


def run_round(
    x: Float[np.ndarray, "d"], state: NewtonState | None, plan: NewtonPlan
) -> Exchanges[tuple[Float[np.ndarray, "d"], NewtonState]]:
    """Take a step and, if it is the last, sum the standard errors; a `ServerHalf.round`."""
    terms = Terms.of(plan, len(x))
    replies = yield Train()
    sums = NewtonSums.total(replies.ups)
    state = begin(terms, sums, plan) if state is None else move(x, terms, state, sums, plan)
    point = state.point + state.step
    if not state.converged[0]:
        warn_unfinished(plan)
        return point, state
    question = NewtonQuestion(point=point, free=state.free, between=np.zeros(len(x)))
    answers = yield Ask(VARIANCE, plan.everyone, question)
    state = keep_variance(state, answers, len(x))
    state = yield from ask_estimates(state, question, plan)
    assert state.figures is not None
    assert state.counts is not None
    if plan.settings.site_effects and terms.intercept:
        point[-1] = state.figures[2] / max(state.counts[0], 1)  # the mean intercept of the rows
    return point, state


def warn_unfinished(plan: NewtonPlan) -> None:
    """Warn after the last round of a run without convergence."""
    if plan.server_round == plan.training.num_server_rounds:
        text = "the estimates have not converged after %d rounds, so there is no table: raise num-server-rounds"
        getLogger("flwr").warning(text, plan.server_round)


def ask_estimates(state: N, question: NewtonQuestion, plan: NewtonPlan) -> Exchanges[N]:
    """Sum the sites' own estimates for the meta-analysis, if the run has one."""
    if not plan.settings.meta_analysis or plan.num_sites < 2:
        return state
    dim = len(question.free)
    fixed = yield Ask(SITE_ESTIMATES, plan.everyone, question)
    estimates, fitted = total_estimates(fixed, dim)
    between = between_sites(estimates, fitted)[2]
    mixed = yield Ask(RANDOM_EFFECTS, plan.everyone, replace(question, between=between))
    random, _ = total_estimates(mixed, dim)
    return replace(state, estimates=estimates, fitted=np.array([fitted]), random=random)


def begin(terms: Terms, sums: dict[str, Any], plan: NewtonPlan, *, counted: str = "training rows") -> NewtonState:
    """Choose the coefficients to estimate, and take the first step, which starts at 0.

    Args:
        terms: The terms of the regression.
        sums: The sums of `NewtonSums`.
        plan: The round's plan.
        counted: The name of the observations that ``rows`` counts.
    """
    if sums["failed"][0]:
        allowed, hint = (
            f"sums of squares below {2.0**84:g}",
            "set scale to standard, or divide large columns or outcomes",
        )
        raise InputError("features", got="values too large for sums", allowed=allowed, hint=hint)
    dim, rows = len(sums["score"]), int(sums["rows"][0])
    information = whole(sums["information"], dim)
    free = terms.choose_free(information)
    if rows <= free.sum():
        allowed = f"more {counted} than the {free.sum()} coefficients"
        raise InputError(counted, got=rows, allowed=allowed, hint="add rows, or drop columns")
    redundant = {} if plan.settings.ridge else terms.find_redundant(information, free)
    if redundant:
        text = "columns without a coefficient, since their information is in other columns: %s"
        getLogger("flwr").warning(text, "; ".join(f"{name!r} is {reason}" for name, reason in redundant.items()))
        free[[terms.names.index(name) for name in redundant]] = False
    total = information[-1, -1] if free[-1] and terms.intercept else float(max(rows, 1))
    zeros = np.zeros(dim)
    try:
        taken = solve_free(information, sums["score"], free, terms.ridge)[0]
    except SingularError as fault:  # a ridge too small for the size of the columns
        name = terms.names[int(np.flatnonzero(free)[fault.index])]
        allowed = "a ridge that makes the equations regular"
        raise InputError(
            "newton.ridge",
            got=f"{plan.settings.ridge:g} with column {name!r}",
            allowed=allowed,
            hint="raise newton.ridge",
        ) from None
    scale = np.where(terms.marks, 1.0, np.sqrt(np.maximum(np.diag(information), 0) / total))
    nothing = np.array([0])
    return NewtonState(free=free, scale=scale, point=zeros, step=taken, flat=nothing, converged=nothing)


def move(x: Float[np.ndarray, "d"], terms: Terms, state: N, sums: dict[str, Any], plan: NewtonPlan) -> N:
    """Accept the round's point and take the next step, or halve the step that led to it."""
    point = state.point + state.step
    objective = float(sums["deviance"][0]) + float(terms.ridge @ point**2)
    before = np.inf if state.objective is None else state.objective[0]
    if sums["failed"][0] or objective > before + _ROUNDING * (1 + abs(before)):
        if np.abs(state.step).max() <= np.finfo(np.float64).eps * np.abs(state.point).max():
            raise explain("the deviance rises in the direction of Newton's step", "set scale to standard")
        return replace(state, step=state.step / 2)
    dim, rows = len(point), int(sums["rows"][0])
    information = whole(sums["information"], dim)
    right = sums["score"] - terms.ridge * point
    try:
        taken = solve_free(information, right, state.free, terms.ridge)[0]
    except SingularError as fault:
        raise terms.explain_separation(int(np.flatnonzero(state.free)[fault.index])) from None
    gain = float(taken @ right)
    if plan.loss in REGRESSIONS and REGRESSIONS[plan.loss].dispersed:
        gain *= (rows - state.free.sum()) / max(float(sums["deviance"][0]), np.finfo(np.float64).tiny)
    longest = int(np.abs(taken * state.scale).argmax())
    flat = int(state.flat[0]) + 1 if gain < 2 * _GAIN and abs(taken * state.scale)[longest] > _LONG else 0
    if flat > 1:
        raise terms.explain_separation(longest)
    return replace(
        state,
        point=point,
        objective=np.array([objective]),
        step=taken,
        flat=np.array([flat]),
        converged=np.array([int(gain <= plan.settings.tolerance**2)]),
    )


def solve_free(
    information: Float64[np.ndarray, "d d"],
    right: Float64[np.ndarray, "d"],
    free: np.ndarray,
    ridge: Float64[np.ndarray, "d"],
) -> tuple[Float64[np.ndarray, "d"], Float64[np.ndarray, "d d"]]:
    """Solve for the coefficients to estimate. All further entries of the solution and the inverse are 0.

    Raises:
        SingularError: The equations are singular; its indices count the estimated coefficients only.
    """
    chosen = np.flatnonzero(free)
    solution, inverse = np.zeros(len(free)), np.zeros((len(free), len(free)))
    matrix = (information + np.diag(ridge))[np.ix_(chosen, chosen)]
    solution[chosen], inverse[np.ix_(chosen, chosen)] = solve(matrix, right[chosen])
    return solution, inverse


def keep_variance(state: N, answers: Replies[NewtonVariance], dim: int) -> N:
    """Keep the sums of the standard errors."""
    sums = NewtonVariance.total(answers.ups)
    if sums["failed"][0]:
        raise explain("sums of squares are too large for standard errors", "set scale to standard")
    matrices = {name: whole(sums[name], dim) for name in ("information", "squares", "clustered")}
    return replace(state, **matrices, figures=sums["figures"], counts=sums["counts"])


def total_estimates(answers: Replies[SiteEstimate], dim: int) -> tuple[Float64[np.ndarray, "4 d"], int]:
    """Return the sums of the meta-analysis, and the number of sites with an estimate."""
    sums = SiteEstimate.total(answers.ups)
    return sums["weights"].reshape(4, dim), int(sums["counts"][0])


def explain(fault: str, hint: str) -> InputError:
    """Return the error of a step that numbers of 64 bits cannot compute."""
    return InputError("coefficients", got=fault, allowed="columns of similar size", hint=hint)


def end(state: NewtonState | None) -> str:
    """Return the reason for the end of the run, or ""; a `ServerHalf.ended`."""
    return "the estimates have converged" if state is not None and state.converged[0] else ""


def limit(client: int, model: Any, plan: NewtonPlan) -> dict[str, int]:
    """Bound the fields of the records by the number of coefficients; a `Checks.limits`."""
    dim = len(model[0])
    return {"s": LIMBS * dim, "i": LIMBS * triangle(dim), "m": 4 * LIMBS * dim, "f": 3 * LIMBS}


def check_record(record: Any, model: Any, plan: NewtonPlan) -> None:
    """Check lengths, counts and the signs of sums of squares; a `Checks.record`."""
    sizes = limit(0, model, plan)
    name = type(record).__name__
    for field, letter in (("score", "s"), ("information", "i"), ("squares", "i"), ("clustered", "i")):
        if (value := getattr(record, field, None)) is not None and len(value) != sizes[letter]:
            raise PayloadError(f"{name}.{field}: got {len(value)} integers, expected {sizes[letter]}")
    for field in ("rows", "counts", "failed"):
        if (value := getattr(record, field, None)) is not None and (value < 0).any():
            raise PayloadError(f"{name}.{field}: got {value.tolist()}, expected numbers >= 0")
    if isinstance(record, SiteEstimate) and len(record.weights) != sizes["m"]:
        raise PayloadError(f"{name}.weights: got {len(record.weights)} integers, expected {sizes['m']}")
    if isinstance(record, NewtonVariance) and len(record.figures) != sizes["f"]:
        raise PayloadError(f"{name}.figures: got {len(record.figures)} integers, expected {sizes['f']}")


def check_sites(plan: NewtonPlan) -> None:
    """Accept all sites, since the method draws no batches."""


NEWTON = Method(
    ClientHalf(Design, no_batches, start, step, finish),
    ServerHalf(round=run_round, ended=end, results=describe),
    Records(down=NewtonQuestion, up=NewtonSums, state=NewtonState),
    settings=NewtonSettings,
    phases={
        VARIANCE: Phase(NewtonVariance, answer_variance),
        SITE_ESTIMATES: Phase(SiteEstimate, answer_estimate),
        RANDOM_EFFECTS: Phase(SiteEstimate, answer_estimate),
    },
    checks=Checks(limits=limit, record=check_record, sites=check_sites),
    table="newton",
    losses=tuple(REGRESSIONS),
    offsets=True,
    default_step=TrainingSettings.model_fields["learning_rate"].default,
    models=("linear", "linear-no-intercept"),
    scales=("standard", "none", "range", "log", "bins"),
    sends="sums over rows: score, information, deviance; at the end sums of squares and the site's own estimate",
    unread=(
        "learning_rate",
        *SCHEDULE,
        "local_steps",
        "batch_size",
        "client_weights",
        "aggregation",
        "trim_fraction",
        "norm_bound",
        "server_learning_rate",
        "score",
    ),
    own_steps=("newton.ridge",),
    number_types=("float64",),
    precise=True,
    needs_all_clients="adds up the sums of all sites",
    retries_failed=True,
    objection="the sums are at the exact coefficients",
)
