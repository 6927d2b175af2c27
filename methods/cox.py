"""The Cox model by sums: Newton's method on the partial likelihood of all rows, which stay at their sites.

Sources: Cox, "Regression models and life-tables", JRSS B 34, 1972; Lu et al., "WebDISCO: a web service for distributed
Cox model learning without patient-level data sharing", JAMIA 22, 2015 (the sums of sites). `methods.cox_sums` has the
formulas.

`REGRESSION` chooses between `methods.newton` and the Cox model, which has two variants. `COX` has risk sets that all
sites share: each client sends for each grid time the moments of its part of the risk set. `STRATIFIED_COX`
(``newton.site-effects``) has a baseline hazard, so risk sets, for each site: each client computes its own risk sets,
and sends the score, the information and the log likelihood. Round 1 starts at 0. Steps, halving and the end are as in
`methods.newton`.

The robust standard errors follow Lin and Wei. Whether hazards are proportional is not tested, since the sums do not
contain the residuals of each time.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float64

from methods.cox_client import (
    CoxDesign,
    answer_estimate,
    answer_residuals,
    answer_risk_sets,
    answer_variance,
    finish_shared,
    finish_stratum,
    start,
)
from methods.cox_records import CoxQuestion, CoxState, CoxSums
from methods.cox_sums import RiskSums, evaluate, find_hazard, residual_terms
from methods.method import ClientHalf, Method, Phase, Records
from methods.newton import (
    NEWTON,
    RANDOM_EFFECTS,
    SITE_ESTIMATES,
    VARIANCE,
    ask_estimates,
    begin,
    check_record,
    end,
    keep_variance,
    limit,
    move,
    warn_unfinished,
)
from methods.newton_client import no_batches, step
from methods.newton_records import (
    EFRON,
    NewtonSettings,
    NewtonSums,
    NewtonVariance,
    SiteEstimate,
    triangle,
    upper,
)
from methods.newton_table import Fit, make_table
from methods.newton_terms import Terms
from methods.server import Ask, Exchanges, Plan, Replies, ServerHalf, Train
from payloads.limbs import LIMBS
from payloads.record import PayloadError
from problems.errors import InputError
from problems.objectives.hazard import COX as COX_LOSS

RISK_SETS = "risk-sets"

CoxPlan = Plan[NewtonSettings]


class Seen(NamedTuple):
    """The sums of a round.

    Attributes:
        sums: The fields of `NewtonSums`, with the number of events as ``rows``.
        risk: The sums over shared risk sets; None with strata.
    """

    sums: dict[str, Any]
    risk: RiskSums | None


def run_round(
    x: Float[np.ndarray, "d"], state: CoxState | None, plan: CoxPlan
) -> Exchanges[tuple[Float[np.ndarray, "d"], CoxState]]:
    """Take a step and, if it is the last, sum the standard errors; a `ServerHalf.round`."""
    terms, grid = terms_of(plan, len(x)), plan.num_times
    if state is None:
        zeros, nothing = np.zeros(len(x)), np.zeros(1, np.int64)
        empty = {"free": np.ones(len(x), bool), "scale": zeros, "step": zeros, "flat": nothing, "converged": nothing}
        first = CoxState(point=zeros, centre=zeros, **empty)
        replies = yield Train(first.ask(zeros, grid))
        state = start_at_zero(terms, add_up(replies, zeros, plan), plan)
    else:
        point = state.point + state.step
        replies = yield Train(state.ask(point, grid))
        state = move(x, terms, state, add_up(replies, point, plan).sums, plan)
    point = state.point + state.step
    if not state.converged[0]:
        warn_unfinished(plan)
        return point, state
    if plan.settings.site_effects:
        answers = yield Ask(VARIANCE, plan.everyone, state.ask(point, grid))
        state = keep_variance(state, answers, len(x))
    else:
        state = yield from finish_shared_sets(state, point, plan)
    state = yield from ask_estimates(state, state.ask(point, grid), plan)
    return point, state


def finish_shared_sets(state: CoxState, point: Float64[np.ndarray, "d"], plan: CoxPlan) -> Exchanges[CoxState]:
    """Sum the information, the baseline hazard and the robust standard errors at the final point."""
    dim, ties = len(point), plan.settings.ties
    answers = yield Ask(RISK_SETS, plan.everyone, state.ask(point, plan.num_times))
    risk = add_up(answers, point, plan).risk
    assert risk is not None
    found, events = evaluate(risk, point, ties), float(risk.events.sum())
    question = state.ask(point, plan.num_times, residual_terms(risk, dim, ties))
    state = keep_variance(state, (yield Ask(VARIANCE, plan.everyone, question)), dim)
    return replace(
        state,
        information=found.information,
        figures=np.array([-2 * found.value, found.value, events]),
        hazard=find_hazard(risk) * np.exp(-state.centre @ point),
    )


def terms_of(plan: CoxPlan, dim: int) -> Terms:
    """Return the terms of the regression. Like a regression with site effects, it has no common intercept."""
    terms = Terms.of(plan, dim)
    return replace(terms, site_effects=terms.site_effects or terms.intercept)


def add_up(replies: Replies[Any], point: Float64[np.ndarray, "d"], plan: CoxPlan) -> Seen:
    """Add the clients' sums up, to the fields of `NewtonSums` at a point."""
    if plan.settings.site_effects:
        return Seen(NewtonSums.total(replies.ups), None)
    risk, totals = CoxSums.add(replies.ups)
    found = evaluate(risk, point, plan.settings.ties)
    sums = {"score": found.score, "information": upper(found.information), "failed": totals["failed"]}
    return Seen({**sums, "deviance": [-2 * found.value], "rows": [risk.events.sum()]}, risk)


def start_at_zero(terms: Terms, seen: Seen, plan: CoxPlan) -> CoxState:
    """Take the first step, and choose the mean of the columns over all risk sets as the centre."""
    sums, dim = seen.sums, len(seen.sums["score"])
    if not sums["failed"][0] and not int(sums["rows"][0]):
        raise InputError("labels", got="no events", allowed="at least one event", hint="check label-column")
    begun, centre = begin(terms, sums, plan, counted="events"), np.zeros(dim)
    if seen.risk is not None:
        totals = seen.risk.at_risk.sum(axis=0)
        centre = totals[1 : dim + 1] / totals[0]
    objective = np.array([float(sums["deviance"][0])])
    return CoxState(**{**vars(begun), "objective": objective}, centre=centre)


def describe(state: CoxState | None, plan: CoxPlan) -> dict[str, Any]:
    """Return the entry ``coefficients`` of result.json; nothing before the end of the run. A `ServerHalf.results`.

    ``baseline`` has the cumulative hazard of a row with score 0 in each interval of time (Breslow); None with strata.
    ``times`` has the upper borders of the intervals; the last interval has none.
    """
    if state is None or state.figures is None:
        return {}
    value, events = state.figures[1:].tolist()
    fit = Fit("Cox", "hazard ratio", int(state.free.sum()), 1.0, value)
    result = make_table(state, terms_of(plan, len(state.free)), plan.settings, fit)
    extra = {"ties": plan.settings.ties, "events": round(events), "strata": plan.settings.site_effects}
    hazard = None if state.hazard is None else state.hazard.tolist()
    times = [] if plan.columns is None else [*plan.columns.time_borders]
    result["coefficients"] |= {**extra, "baseline": hazard, "times": times}
    return result


def limit_shared(client: int, model: Any, plan: CoxPlan) -> dict[str, int]:
    """Bound the fields of the records by the numbers of coefficients and of grid times; a `Checks.limits`."""
    dim, times = len(model[0]), plan.num_times
    moments = LIMBS * times * (1 + dim + triangle(dim))
    tied = moments if plan.settings.ties == EFRON else 0
    return {**limit(client, model, plan), "t": times, "r": moments, "q": tied}


def check_shared(record: Any, model: Any, plan: CoxPlan) -> None:
    """Check lengths, counts and the signs of sums of squares; a `Checks.record`."""
    check_record(record, model, plan)
    sizes = limit_shared(0, model, plan)
    for field, letter in (("at_risk", "r"), ("tied", "q"), ("events", "t")):
        if (value := getattr(record, field, None)) is not None and len(value) != sizes[letter]:
            raise PayloadError(f"CoxSums.{field}: got {len(value)} integers, expected {sizes[letter]}")
    if (getattr(record, "events", np.zeros(1)) < 0).any():
        raise PayloadError("CoxSums.events: got numbers below 0, expected numbers >= 0")


_ESTIMATES = {name: Phase(SiteEstimate, answer_estimate) for name in (SITE_ESTIMATES, RANDOM_EFFECTS)}
_SERVER = ServerHalf(round=run_round, ended=end, results=describe)

STRATIFIED_COX = replace(
    NEWTON,
    client=ClientHalf(CoxDesign, no_batches, start, step, finish_stratum),
    server=_SERVER,
    records=Records(down=CoxQuestion, up=NewtonSums, state=CoxState),
    phases={VARIANCE: Phase(NewtonVariance, answer_variance), **_ESTIMATES},
)

COX: Method = replace(
    STRATIFIED_COX,
    client=replace(STRATIFIED_COX.client, finish=finish_shared),
    records=Records(down=CoxQuestion, up=CoxSums, state=CoxState),
    phases={
        RISK_SETS: Phase(CoxSums, answer_risk_sets),
        VARIANCE: Phase(NewtonVariance, answer_residuals),
        **_ESTIMATES,
    },
    checks=replace(NEWTON.checks, limits=limit_shared, record=check_shared),
    choose=lambda method, settings, loss: STRATIFIED_COX if settings.site_effects else method,
)

REGRESSION: Method = replace(
    NEWTON,
    losses=(*NEWTON.losses, COX_LOSS),
    choose=lambda method, settings, loss: COX.of(settings) if loss == COX_LOSS else method,
)
