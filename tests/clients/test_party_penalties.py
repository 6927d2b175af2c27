"""Tests of nonsmooth penalties of the parties' blocks: proximal SGD, SVRG and SAGA, and the selected columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import Lasso

from benchmarks.parties import run_parties
from tests.clients.party_problems import ALGORITHMS, Array, Case, Tape, make_case
from tests.reference.vfb2 import Nonsmooth, centralised
from vertical.problem.blocks import make_block
from vertical.problem.objectives import make_objective
from vertical.segment.plan import Holding
from vertical.transport.frames import Kind

# an unpenalised column, and groups of one, two and three columns, one group with scattered columns
GROUPS = np.array([-1, 4, 2, 2, 7, 4, 9, 9, 9, 1, 7, 4, 3])
PENALTIES = ("l1", "group-lasso")


def penalised(case: Case, whole: bool = False) -> tuple[list[Holding], Nonsmooth]:
    """Return the parties' data with their own groups, and the penalty of the whole model.

    Args:
        whole: Whether each party's block is one group.
    """
    numbers = np.full(13, -1)
    for party, own in enumerate(case.columns):
        groups = np.minimum(GROUPS[own], 0) if whole else GROUPS[own]
        numbers[own] = np.where(groups < 0, -1, 100 * party + groups)
    holdings = [
        replace(holding, groups=np.where(numbers[own] < 0, -1, numbers[own] % 100))
        for holding, own in zip(case.holdings, case.columns, strict=True)
    ]
    return holdings, Nonsmooth(case.plan.penalty_weight, numbers.tolist(), case.plan.penalty == "group-lasso")


def course(case: Case, nonsmooth: Nonsmooth) -> list[Array]:
    """Return the reference's weights before the first update and after each."""
    plan, weights = case.plan, [np.zeros(13)]
    problem, epochs = case.problem(), case.epochs()
    centralised(
        problem, case.features, case.labels, plan.algorithm, plan.step, epochs, hook=weights.append, nonsmooth=nonsmooth
    )
    return weights


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize(
    ("algorithm", "problem", "weight"),
    [("sgd", "logistic", 0.3), ("svrg", "nonconvex-logistic", 0.1), ("saga", "ridge", 3.0)],
)
def test_every_update_is_the_proximal_one(
    algorithm: str, problem: str, weight: float, penalty: str, sparse: bool
) -> None:
    fields = {"algorithm": algorithm, "problem": problem, "penalty": penalty, "penalty_weight": weight}
    case = make_case(3, (1,), synchronous=True, **fields)
    holdings, nonsmooth = penalised(case)
    if sparse:
        holdings = [replace(one, groups=two.groups) for one, two in zip(case.sparse_holdings, holdings, strict=True)]
    expected = course(case, nonsmooth)
    assert len(expected) == 1 + 2 * 8
    tapes = [Tape() for _ in range(3)]
    outcomes = run_parties(holdings, case.plan, processes=False, recorders=tapes)[0]
    for party in (0, 2):  # both send the dominator the partials of every update
        own, rows = case.columns[party], [batch for epoch in case.epochs() for batch in epoch[0]]
        given = [values for kind, _, values in tapes[party].partials if kind == Kind.PARTIAL]
        for batch, before, values in zip(rows, expected[:-1], given, strict=True):
            np.testing.assert_allclose(values, case.features[np.ix_(batch, own)] @ before[own], rtol=0, atol=1e-9)
    weights = case.whole(outcomes)
    np.testing.assert_allclose(weights, expected[-1], rtol=0, atol=1e-9)
    np.testing.assert_array_equal(weights == 0, expected[-1] == 0)
    assert 1 < (weights == 0).sum() < 12
    metrics = outcomes[1].metrics
    assert metrics["nonzeros"] == np.count_nonzero(weights)
    value = case.problem().value(case.features, case.labels, weights) + nonsmooth.value(weights)
    assert metrics["objective"] == pytest.approx(value, rel=0, abs=1e-9)


@pytest.mark.parametrize("whole", [False, True], ids=["columns", "parties"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_rounds_of_several_dominators_are_the_centralised_order(algorithm: str, whole: bool) -> None:
    case = make_case(4, (2, 0), algorithm=algorithm, synchronous=True, penalty="group-lasso", penalty_weight=0.05)
    holdings, nonsmooth = penalised(case, whole)
    weights = case.whole(run_parties(holdings, case.plan, processes=False)[0])
    np.testing.assert_allclose(weights, course(case, nonsmooth)[-1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("threads", [1, 3])
def test_asynchronous_runs_find_the_lasso_of_scikit_learn(threads: int) -> None:
    fields = {"algorithm": "svrg", "problem": "ridge", "weight": 0.0, "step": 0.02, "batch_size": 2, "window": 2}
    case = make_case(3, (0, 1), epochs=150, skew=8, penalty="l1", penalty_weight=0.8, **fields)
    outcomes = run_parties(case.holdings, case.plan, processes=False, threads=threads)[0]
    # Lasso has half the mean of squares, so half the weight
    lasso = Lasso(alpha=0.4, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(case.features, case.labels)
    np.testing.assert_allclose(case.whole(outcomes), lasso.coef_, rtol=0, atol=1e-6)
    assert 0 < outcomes[0].metrics["nonzeros"] == np.count_nonzero(lasso.coef_) < 13


def test_no_penalty_and_one_of_weight_zero_are_the_same_updates() -> None:
    plain = make_case(3, (1,), synchronous=True)
    case = replace(plain, plan=replace(plain.plan, penalty="group-lasso"))
    np.testing.assert_array_equal(case.whole(case.run()), plain.whole(plain.run()))
    assert "nonzeros" not in plain.run()[1].metrics


def test_what_a_plan_may_ask_for() -> None:
    for fields, told in (
        ({"penalty": "ridge"}, "penalty 'ridge' is not known; one of: none, l1, group-lasso"),
        ({"penalty": "l1", "penalty_weight": -1.0}, "penalty_weight must be >= 0 and finite, got -1.0"),
        ({"penalty": "l1", "embedding": 2}, "a plan with a penalty must have embedding 0"),
    ):
        with pytest.raises(ValueError, match=told):
            make_case(3, (1,), **fields).plan.check()


def test_a_block_of_free_columns_has_no_penalty() -> None:
    block = make_block(np.ones((2, 1)), "sgd", make_objective("ridge", 0.0), 0.1)
    assert block.nonsmooth is None
    case = make_case(3, (1,), penalty="l1", penalty_weight=100.0, synchronous=True)
    holdings = [
        replace(one, groups=np.full(len(own), -1)) for one, own in zip(case.holdings, case.columns, strict=True)
    ]
    weights = case.whole(run_parties(holdings, case.plan, processes=False)[0])
    np.testing.assert_allclose(weights, case.centralised(), rtol=0, atol=1e-9)
