"""A server that sees sums over shared risk sets rebuilds rows; a site with its own file refuses to send such sums."""

from typing import Any

import numpy as np
import pytest
import torch

from methods.cox import COX
from methods.cox_client import answer_residuals, answer_risk_sets, answer_variance, finish_stratum, start
from methods.cox_records import CoxQuestion, CoxSums
from methods.method import Task
from methods.newton_records import NewtonSettings, NewtonSums, whole
from payloads.settings import TrainingSettings
from problems.errors import InputError
from tests.algorithms.test_cox import GRID, draw, make_site
from tests.reference.cox import Data
from tests.refusals import refuses

SITE = 2  # of 160 rows


def make_task(data: Data, least: int = 5, summed: int = 1, *, strata: bool = False) -> Any:
    settings, training = NewtonSettings(site_effects=strata), TrainingSettings(dtype="float64")
    site: Any = make_site(data, SITE, least)
    model: Any = type("Model", (), {"parameter_names": ["weight"]})()
    return Task(
        2, training, settings, site, COX.client.objective(model, site, "cox", training, settings), "cox", summed
    )


def ask(point: np.ndarray | None = None, terms: np.ndarray | None = None) -> CoxQuestion:
    zeros = np.zeros(3)
    point = zeros if point is None else point
    return CoxQuestion(
        point=point, free=np.ones(3, bool), between=zeros, centre=zeros, grid=np.array([GRID]), terms=terms
    )


def finish(task: Any, point: np.ndarray | None = None) -> NewtonSums:
    return finish_stratum(start(torch.zeros(3), ask(point), None, task), task)[1]


def leaving(data: Data, task: Any) -> tuple[np.ndarray, np.ndarray]:
    """The attack: return the moments of the rows that leave at each time, from neighbouring risk sets, and their number
    of rows."""
    risk, _ = CoxSums.add([answer_risk_sets(torch.zeros(3), ask(), task)])
    return -np.diff(risk.at_risk, axis=0, append=0), np.bincount(data.times[data.strata == SITE], minlength=GRID)


def test_neighbouring_risk_sets_reveal_a_row_that_leaves_alone() -> None:
    data = draw()
    own = np.flatnonzero(data.strata == SITE)
    data.times[own] = np.minimum(data.times[own], GRID - 2)
    data.times[own[0]] = GRID - 1
    sums, counts = leaving(data, make_task(data, least=1))  # the owner allows this
    assert counts[-1] == 1
    np.testing.assert_allclose(sums[-1, 1:4], data.columns[own[0]], rtol=1e-9)


def test_neighbouring_risk_sets_of_many_rows_reveal_the_only_row_of_a_category() -> None:
    data = draw()
    own = np.flatnonzero(data.strata == SITE)
    data.columns[own, 2], data.times[own] = 0, np.minimum(data.times[own], GRID - 2)
    data.times[own[:20]], data.columns[own[0], 2] = GRID - 1, 1  # 20 rows leave together
    sums, counts = leaving(data, make_task(data, least=1))
    assert counts[-1] == 20
    second = whole(sums[-1, 4:], 3)
    np.testing.assert_allclose(second[2, :2] / second[2, 2], data.columns[own[0], :2], rtol=1e-8)


@pytest.mark.parametrize("summed", [1, 3])
def test_a_site_that_protects_small_cells_sends_no_shared_risk_sets(summed: int) -> None:
    task = make_task(draw(), summed=summed)
    questions = {answer_risk_sets: ask(), answer_residuals: ask(terms=np.zeros((GRID, 11)))}
    for answer, question in questions.items():
        with refuses(InputError, "newton.site-effects: got false"):
            answer(torch.zeros(3), question, task)


def test_times_after_the_grid_are_refused() -> None:
    data = draw()
    data.times[data.strata == SITE] = GRID
    with refuses(InputError, "times: got times after the grid"):
        answer_risk_sets(torch.zeros(3), ask(), make_task(data, least=1))


def test_strata_of_few_rows_or_few_events_are_not_sent() -> None:
    data = draw()
    assert not finish(make_task(data, strata=True)).failed[0]
    own = np.flatnonzero(data.strata == SITE)
    few = data._replace(events=np.where(np.cumsum(data.events * (data.strata == SITE)) > 4, 0, data.events))
    with refuses(InputError, "labels: got fewer than 5 rows with another label"):
        finish(make_task(few, strata=True))
    late = data._replace(times=data.times.copy(), events=data.events.copy())
    late.times[own[:9]], late.events[own[:9]], late.events[own[9:]] = GRID - 1, 1, 0
    late.times[own[9:]] = np.minimum(late.times[own[9:]], GRID - 2)
    with refuses(InputError, "training rows: got 9, allowed: at least 10"):  # no other row is at risk at an event
        finish(make_task(late, strata=True))


def test_a_category_with_one_row_at_risk_is_not_sent() -> None:
    """The category has enough rows, but all except one leave before the first event."""
    data = draw()
    own = np.flatnonzero(data.strata == SITE)
    data.times[own] = np.maximum(data.times[own], 2)
    data.columns[own, 2] = 0
    data.columns[own[:12], 2], data.times[own[:11]], data.events[own[:11]] = 1, 1, 0
    data.times[own[11]] = GRID - 1
    allowed = NewtonSums.total([finish(make_task(data, least=1, strata=True))])
    information = whole(allowed["information"], 3)
    guess, row = information[2, :2] / information[2, 2], data.columns[own[11], :2] - data.columns[own, :2].mean(axis=0)
    assert (np.abs(guess - row) < 0.3 * data.columns[own, :2].std(axis=0)).all()  # the attack: the row is nearly known
    with refuses(InputError, "features: got fewer than 5 rows that differ from the others in column 'sex'"):
        finish(make_task(data, strata=True))
    finish(make_task(data, summed=3, strata=True))  # the server sees only a sum over three sites


def test_coefficients_that_single_out_a_row_are_refused() -> None:
    with refuses(InputError, "coefficients: got coefficients under which a few rows have nearly all weight"):
        finish(make_task(draw(), strata=True), np.array([0.0, 9.0, 0.0]))
    finish(make_task(draw(), strata=True), np.array([0.0, 0.2, 0.0]))


def test_robust_sums_that_few_rows_dominate_are_withheld() -> None:
    data = draw()
    task = make_task(data, strata=True)
    assert answer_variance(torch.zeros(3), ask(), task).counts.tolist() == [160, 1, 0]
    data.columns[np.flatnonzero(data.strata == SITE)[7], 1] = 500.0
    record = answer_variance(torch.zeros(3), ask(), make_task(data, strata=True))
    assert record.counts.tolist() == [160, 1, 1]
    assert not record.squares.any()
