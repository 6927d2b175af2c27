"""The result of `methods.newton`: the table of coefficients.

Robust standard errors: White, "A heteroskedasticity-consistent covariance matrix estimator", Econometrica 48, 1980
(HC0). Clustered ones, with the factor G / (G - 1) (n - 1) / (n - k) of G sites, n rows and k coefficients: Liang and
Zeger, Biometrika 73, 1986. Random effects: DerSimonian and Laird, Controlled Clinical Trials 7, 1986.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from methods.newton_records import CLUSTERED, MODEL, ROBUST, NewtonSettings, NewtonState
from methods.newton_terms import INTERCEPT, Terms
from methods.server import Plan
from problems.errors import InputError
from problems.objectives.regression import REGRESSIONS

# the 97.5 % quantile of the normal distribution
_QUANTILE = 1.959963984540054
# the largest rounding error of a variance, relative to the sum of its terms' absolute values
_ROUNDING = 1e-9


def describe(state: NewtonState | None, plan: Plan[NewtonSettings]) -> dict[str, Any]:
    """Return the entry ``coefficients`` of result.json; nothing before the end of the run. A `ServerHalf.results`."""
    if state is None or state.figures is None or state.counts is None:
        return {}
    family, (rows, sites, _) = REGRESSIONS[plan.loss], state.counts.tolist()
    deviance, log_likelihood = state.figures[:2].tolist()
    parameters = int(state.free.sum()) + (sites if plan.settings.site_effects else 0)
    dispersion = 1.0
    if family.dispersed:
        dispersion = deviance / (rows - parameters) if rows > parameters else math.nan
        log_likelihood = -rows / 2 * (math.log(2 * math.pi * deviance / rows) + 1)
    fit = Fit(family.name, family.ratio, parameters, dispersion, log_likelihood)
    return make_table(state, Terms.of(plan, len(state.free)), plan.settings, fit)


class Fit(NamedTuple):
    """The facts about a model that its table needs: its name, its kind of ratio, and its fit."""

    name: str
    ratio: str
    parameters: int
    dispersion: float
    log_likelihood: float


def make_table(state: NewtonState, terms: Terms, settings: NewtonSettings, fit: Fit) -> dict[str, Any]:
    """Return the entry ``coefficients`` of result.json at the end of a run."""
    assert state.counts is not None
    assert state.figures is not None
    rows, sites, withheld = state.counts.tolist()
    covariances = sandwich(state, terms, rows, sites, fit.parameters, fit.dispersion)
    if withheld:
        covariances.pop(ROBUST)
    assert state.information is not None
    candidates = terms.choose_free(state.information)
    redundant = {} if terms.ridge.any() else terms.find_redundant(state.information, candidates)
    point = state.point + state.step
    divisor, shift = terms.unit()
    to_raw = np.diag(1 / divisor)
    if terms.intercept:
        to_raw[-1, :-1] -= (shift / divisor)[:-1]
    estimates = to_raw @ point
    errors = {name: standard_errors(to_raw, value) for name, value in covariances.items()}
    used = settings.intervals if settings.intervals in errors else MODEL
    table = [
        coefficient(terms.names[index], estimates[index], {name: value[index] for name, value in errors.items()}, used,
                    ratio=bool(fit.ratio) and terms.names[index] != INTERCEPT)
        for index in _order(terms, state)
    ]  # fmt: skip
    result = {
        "model": fit.name,
        "ratio": fit.ratio,
        "intervals": used,
        "rows": rows,
        "sites": sites,
        "parameters": fit.parameters,
        "log_likelihood": fit.log_likelihood,
        "deviance": float(state.figures[0]),
        "aic": 2 * fit.parameters - 2 * fit.log_likelihood,
        "dispersion": fit.dispersion,
        "ridge": settings.ridge,
        "site_effects": settings.site_effects,
        "references": terms.references(candidates, state.information),
        "left_out": redundant,
        "sites_withheld": withheld,
        "sites_fitted": None if state.fitted is None else int(state.fitted[0]),
        "table": table,
    }
    if state.estimates is not None and state.random is not None and state.fitted is not None:
        pooled = combine(state.estimates, state.random, int(state.fitted[0]), divisor)
        for row, index in zip(table, _order(terms, state), strict=True):
            if row["name"] != INTERCEPT and pooled:
                row["meta_analysis"] = {name: float(value[index]) for name, value in pooled.items()}
    return {"coefficients": result}


def standard_errors(
    to_raw: Float64[np.ndarray, "d d"], covariance: Float64[np.ndarray, "d d"]
) -> Float64[np.ndarray, "d"]:
    """Return the standard errors of coefficients in the units of the raw columns.

    Args:
        to_raw: The map from coefficients of scaled columns to coefficients of raw columns.
        covariance: The covariance of the coefficients of scaled columns.

    Raises:
        InputError: A variance is below 0 by more than rounding: a site has sent sums that no rows can have.
    """
    variances = np.diag(to_raw @ covariance @ to_raw.T)
    scales = np.diag(np.abs(to_raw) @ np.abs(covariance) @ np.abs(to_raw.T))
    if (variances < -_ROUNDING * scales).any():
        got, hint = "a variance below 0, which no rows can have", "train without the site whose sums are wrong"
        raise InputError("coefficients", got=got, allowed="sums of squares from all sites", hint=hint)
    return np.sqrt(np.maximum(variances, 0.0))


def _order(terms: Terms, state: NewtonState) -> list[int]:
    """Return the indices of the estimated coefficients, the intercept first."""
    chosen = np.flatnonzero(state.free).tolist()
    return chosen[-1:] + chosen[:-1] if terms.intercept and state.free[-1] else chosen


def sandwich(
    state: NewtonState, terms: Terms, rows: int, sites: int, parameters: int, dispersion: float
) -> dict[str, Float64[np.ndarray, "d d"]]:
    """Return the covariances of the coefficients, by the name of the standard errors."""
    assert state.information is not None
    assert state.squares is not None
    assert state.clustered is not None
    chosen = np.ix_(np.flatnonzero(state.free), np.flatnonzero(state.free))
    bread = np.zeros_like(state.information)
    matrix = (state.information + np.diag(terms.ridge))[chosen]
    size = np.sqrt(np.diag(matrix))
    bread[chosen] = np.linalg.inv(matrix / np.outer(size, size)) / np.outer(size, size)
    covariances = {
        MODEL: dispersion * (bread @ state.information @ bread if terms.ridge.any() else bread),
        ROBUST: bread @ state.squares @ bread,
    }
    if sites > 1 and rows > parameters:
        factor = sites / (sites - 1) * (rows - 1) / (rows - parameters)
        covariances[CLUSTERED] = factor * bread @ state.clustered @ bread
    return covariances


def coefficient(name: str, estimate: float, errors: dict[str, float], used: str, *, ratio: bool) -> dict[str, Any]:
    """Return a row of the table.

    Args:
        name: The coefficient's name.
        estimate: The estimate.
        errors: The standard errors by name.
        used: The name of the standard error of the interval.
        ratio: Whether the exponential has a meaning.
    """
    error = errors[used]
    low, high = estimate - _QUANTILE * error, estimate + _QUANTILE * error
    z = estimate / error if error > 0 else math.nan
    row: dict[str, Any] = {"name": name, "estimate": float(estimate)}
    row |= {f"std_error_{kind}": float(errors[kind]) if kind in errors else None for kind in (MODEL, ROBUST, CLUSTERED)}
    row |= {"low": float(low), "high": float(high)}
    row |= {"z": float(z), "p": math.erfc(abs(z) / math.sqrt(2))} if error > 0 else {"z": None, "p": None}
    if ratio:
        row |= {key: _exp(value) for key, value in (("ratio", estimate), ("ratio_low", low), ("ratio_high", high))}
    return row


def _exp(value: float) -> float | None:
    return math.exp(value) if value < 700 else None


def between_sites(
    sums: Float64[np.ndarray, "4 d"], fitted: int
) -> tuple[Float64[np.ndarray, "d"], Float64[np.ndarray, "d"], Float64[np.ndarray, "d"]]:
    """Return the fixed-effect estimates, Cochran's Q, and the variance between sites of DerSimonian and Laird.

    Args:
        sums: The sums of `SiteEstimate` without a variance between sites.
        fitted: The number of sites with an estimate.
    """
    weight, first, second, squares = sums
    some = np.where(weight > 0, weight, 1.0)
    fixed = first / some
    spread = np.maximum(second - first**2 / some, 0.0)
    room = weight - squares / some
    between = np.maximum(spread - (fitted - 1), 0.0) / np.where(room > 0, room, np.inf)
    return fixed, spread, between


def combine(
    fixed: Float64[np.ndarray, "4 d"],
    random: Float64[np.ndarray, "4 d"],
    fitted: int,
    divisor: Float64[np.ndarray, "d"],
) -> dict[str, Float64[np.ndarray, "d"]]:
    """Return the meta-analysis of each coefficient, in raw units, by name; nothing with fewer than two estimates.

    Args:
        fixed: The sums of `SiteEstimate` without a variance between sites.
        random: The sums with this variance.
        fitted: The number of sites with an estimate.
        divisor: See `Terms.unit`.
    """
    if fitted < 2:
        return {}
    estimate, spread, between = between_sites(fixed, fitted)
    weights = [np.where(sums[0] > 0, sums[0], np.inf) for sums in (fixed, random)]
    return {
        "fixed": estimate / divisor,
        "fixed_std_error": weights[0] ** -0.5 / divisor,
        "random": random[1] / weights[1] / divisor,
        "random_std_error": weights[1] ** -0.5 / divisor,
        "between_sites": np.sqrt(between) / divisor,
        "heterogeneity": np.maximum(0.0, 1 - (fitted - 1) / np.where(spread > 0, spread, np.inf)),
    }
