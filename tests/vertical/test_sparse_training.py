"""Tests on sparse rows of very many columns: asynchronous training at the size of news20.binary, and smaller."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse

from benchmarks.parties import run_parties
from tests.clients.party_problems import make_case
from tests.reference.vertical import train
from tests.vertical.company import Company, posts
from tests.vertical.synthetic import sparse_like_news20
from vertical.problem.analysis import value
from vertical.problem.blocks.base import Features
from vertical.problem.blocks.sparse import canonical
from vertical.problem.objectives import Array, make_objective
from vertical.segment.plan import Holding, SegmentOutcome, SegmentPlan
from vertical.transport.endpoint import Limits

WEIGHT = 1e-6
OBJECTIVE = make_objective("logistic", WEIGHT)
PLAN = replace(
    make_case(8, (0, 1), algorithm="svrg", window=2, skew=8, epochs=3, batch_size=64).plan,
    weight=WEIGHT,
    step=32.0,
    seed=0,
    rows=18_000,
    test_rows=2_000,
)


class Table:
    """Sparse rows for training and testing, with columns split among the parties of a plan."""

    def __init__(self, plan: SegmentPlan, columns: int, draws: int) -> None:
        features, labels = sparse_like_news20(plan.rows + plan.test_rows, columns, draws, seed=1)
        self.plan = plan
        self.train, self.test = canonical(features[: plan.rows]), canonical(features[plan.rows :])
        self.labels, self.test_labels = labels[: plan.rows], labels[plan.rows :]
        ends = np.linspace(0, columns, plan.parties + 1).astype(int)
        self.holdings = [
            Holding(
                canonical(sparse.csr_array(self.train[:, start:stop])),
                canonical(sparse.csr_array(self.test[:, start:stop])),
                self.labels if party in plan.active else None,
                self.test_labels if party in plan.active else None,
            )
            for party, (start, stop) in enumerate(pairwise(ends))
        ]

    def alone(self, features: Features, problem: str = "logistic") -> Array:
        """Return the model of all columns pooled."""
        plan, objective = self.plan, make_objective(problem, self.plan.weight)
        settings = {"step": plan.step, "epochs": plan.epochs, "batch_size": plan.batch_size, "seed": plan.seed}
        return train(features, self.labels, objective, plan.algorithm, **settings)

    def check(self, outcomes: list[SegmentOutcome]) -> tuple[float, float, float]:
        """Return the objective, the reference's objective and the test accuracy; require that reported equals
        computed."""
        weights = np.concatenate([outcome.weights for outcome in outcomes])
        accuracy = float(np.mean(np.sign(self.test @ weights) == self.test_labels))
        objective, alone = (value(self.train, self.labels, OBJECTIVE, w) for w in (weights, self.alone(self.train)))
        assert outcomes[0].metrics["objective"] == pytest.approx(objective, rel=0, abs=1e-9)
        assert outcomes[0].metrics["accuracy"] == pytest.approx(accuracy, rel=0, abs=1e-3)
        return objective, alone, accuracy


@pytest.mark.alone
@pytest.mark.slow
def test_news20_sized_blocks_train_in_processes() -> None:
    table = Table(PLAN, 1_360_000, 596)
    assert [holding.features.shape for holding in table.holdings] == [(18_000, 170_000)] * 8
    limits = Limits(join=30.0, silence=20.0)
    with posts(PLAN, table.holdings, limits=limits) as team, Company(team.values()) as company:
        ended = [end for _, end in sorted(company.ends(within=180.0).items())]
    outcomes = [end.result for end in ended if isinstance(end.result, SegmentOutcome)]
    assert len(outcomes) == 8, ended
    objective, alone, accuracy = table.check(outcomes)
    assert objective < 0.5
    assert objective == pytest.approx(alone, rel=0.03)
    # 2,000 rows: chance is 50 % with a standard deviation of 1.1 %
    assert accuracy > 0.63
    assert max(outcome.counters["max_staleness"] for outcome in outcomes) > PLAN.window
    # dense, each block alone would take 24 GB
    assert max(end.memory for end in ended) < 2**30


@pytest.mark.parametrize("problem", ["logistic", "nonconvex-logistic"])
@pytest.mark.parametrize("algorithm", ["sgd", "svrg", "saga"])
def test_lazy_updates_are_those_of_dense_blocks(algorithm: str, problem: str) -> None:
    """One update under way, and a regulariser that also affects columns which no batch has touched for long."""
    plan = replace(PLAN, algorithm=algorithm, problem=problem, weight=0.05, parties=4, active=(2,), window=1, skew=0)
    plan = replace(plan, rows=200, test_rows=50, batch_size=4, step=0.5, epochs=3)
    table = Table(plan, 2_000, 20)
    outcomes = run_parties(table.holdings, plan, processes=False)[0]
    dense = table.alone(table.train.toarray(), problem)
    np.testing.assert_allclose(np.concatenate([outcome.weights for outcome in outcomes]), dense, rtol=0, atol=1e-9)
    expected = value(table.train, table.labels, make_objective(problem, plan.weight), dense)
    assert outcomes[2].metrics["objective"] == pytest.approx(expected, rel=0, abs=1e-9)
