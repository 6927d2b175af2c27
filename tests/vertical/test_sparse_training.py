"""Sparse rows of very many columns: asynchronous training at the size of news20.binary, and smaller."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse

from clients.vertical.limits import Limits
from clients.vertical.plan import Holding, Outcome, Plan
from problems.vertical.objectives import Array, make_objective
from problems.vertical.solvers import train, value
from problems.vertical.sparse_blocks import canonical
from simulations.parties import run_parties
from tests.vertical.company import Company, posts
from tests.vertical.synthetic import sparse_like_news20

WEIGHT = 1e-6
OBJECTIVE = make_objective("logistic", WEIGHT)
PLAN = Plan(
    serial=1,
    segment=1,
    algorithm="svrg",
    problem="logistic",
    weight=WEIGHT,
    step=32.0,
    batch_size=64,
    seed=0,
    first_epoch=0,
    epochs=3,
    parties=8,
    active=(0, 1),
    window=2,
    skew=8,
    masking="pairwise",
    synchronous=False,
    update_passive=True,
    evaluate=True,
    label_epsilon=0.0,
    rows=18_000,
    test_rows=2_000,
    start=True,
)


class Table:
    """Sparse rows for training and testing, their columns cut among the parties of a plan."""

    def __init__(self, plan: Plan, columns: int, draws: int) -> None:
        features, labels = sparse_like_news20(plan.rows + plan.test_rows, columns, draws, seed=1)
        self.plan = plan
        self.train = canonical(features[: plan.rows])
        self.test = canonical(features[plan.rows :])
        self.labels, self.test_labels = labels[: plan.rows], labels[plan.rows :]
        ends = np.linspace(0, columns, plan.parties + 1).astype(int)
        self.cuts = [slice(start, stop) for start, stop in pairwise(ends)]

    @property
    def holdings(self) -> list[Holding]:
        plan = self.plan
        return [
            Holding(
                canonical(sparse.csr_array(self.train[:, own])),
                canonical(sparse.csr_array(self.test[:, own])),
                self.labels if party in plan.active else None,
                self.test_labels if party == plan.reporter else None,
            )
            for party, own in enumerate(self.cuts)
        ]

    def check(self, outcomes: list[Outcome]) -> tuple[float, float, float]:
        """The objective, the reference's objective and the test accuracy; what was reported is what was computed."""
        weights = np.concatenate([outcome.weights for outcome in outcomes])
        objective, accuracy = self.objective(weights), float(np.mean(np.sign(self.test @ weights) == self.test_labels))
        assert outcomes[0].metrics["objective"] == pytest.approx(objective, rel=0, abs=1e-9)
        assert outcomes[0].metrics["accuracy"] == pytest.approx(accuracy, rel=0, abs=1e-3)
        plan = self.plan
        alone = train(
            self.train,
            self.labels,
            OBJECTIVE,
            plan.algorithm,
            step=plan.step,
            epochs=plan.epochs,
            batch_size=plan.batch_size,
            seed=plan.seed,
        )
        return objective, self.objective(alone), accuracy

    def objective(self, weights: Array) -> float:
        return value(self.train, self.labels, OBJECTIVE, weights)


@pytest.mark.slow
def test_news20_sized_blocks_train_in_processes() -> None:
    plan, began = PLAN, time.monotonic()
    table = Table(plan, 1_360_000, 596)
    holdings = table.holdings
    entries = [holding.features.nnz / plan.rows for holding in holdings]  # type: ignore[union-attr]
    assert [holding.features.shape for holding in holdings] == [(18_000, 170_000)] * 8
    assert min(entries) >= 48
    drawn = time.monotonic() - began
    with posts(plan, holdings, limits=Limits(join=30.0, silence=20.0)) as team, Company(team.values()) as company:
        ended = company.ends(within=180.0)
    assert all(isinstance(end.result, Outcome) for end in ended.values()), ended
    outcomes = [end.result for _, end in sorted(ended.items()) if isinstance(end.result, Outcome)]
    objective, alone, accuracy = table.check(outcomes)
    updates, seconds = outcomes[0].counters["updates"], outcomes[0].counters["seconds_training"]
    memory = max(end.memory for end in ended.values()) / 2**20
    print(
        f"\n{plan.rows:,} rows, 8 parties with 170,000 columns, {min(entries):.1f} to {max(entries):.1f} entries a row "
        f"and block: objective {np.log(2):.4f} -> {objective:.4f} (in one place {alone:.4f}), test accuracy "
        f"{accuracy:.2%}; {updates:.0f} updates in {seconds:.1f} s, at most {memory:.0f} MiB a process; "
        f"{drawn:.1f} s to draw the data"
    )
    assert objective < 0.5
    assert objective == pytest.approx(alone, rel=0.03)
    # 2,000 rows: chance is 50 % with a standard deviation of 1.1 %
    assert accuracy > 0.63
    assert max(outcome.counters["max_staleness"] for outcome in outcomes) > plan.window
    # dense, each block alone would take 24 GB
    assert memory < 1024


@pytest.mark.parametrize("algorithm", ["sgd", "svrg", "saga"])
def test_smaller_sparse_blocks_train(algorithm: str) -> None:
    plan = replace(PLAN, algorithm=algorithm, parties=4, rows=1000, test_rows=400, batch_size=16, step=8.0, epochs=4)
    table = Table(plan, 8_000, 60)
    outcomes = run_parties(table.holdings, plan, processes=False)[0]
    objective, alone, accuracy = table.check(outcomes)
    print(f"\n{algorithm}: objective {np.log(2):.4f} -> {objective:.4f} (in one place {alone:.4f}), {accuracy:.2%}")
    assert objective < 0.55
    assert objective == pytest.approx(alone, rel=0.05)
    assert accuracy > 0.6


@pytest.mark.parametrize("problem", ["logistic", "nonconvex-logistic"])
@pytest.mark.parametrize("algorithm", ["sgd", "svrg", "saga"])
def test_lazy_updates_are_those_of_dense_blocks(algorithm: str, problem: str) -> None:
    """One update under way, and a regulariser that columns feel which no batch has touched for long."""
    plan = replace(PLAN, algorithm=algorithm, problem=problem, weight=0.05, parties=4, active=(2,), window=1, skew=0)
    plan = replace(plan, rows=200, test_rows=50, batch_size=4, step=0.5, epochs=3)
    table = Table(plan, 2_000, 20)
    outcomes = run_parties(table.holdings, plan, processes=False)[0]
    objective = make_objective(problem, plan.weight)
    dense = train(table.train.toarray(), table.labels, objective, algorithm, step=0.5, epochs=3, batch_size=4, seed=0)
    found = np.concatenate([outcome.weights for outcome in outcomes])
    np.testing.assert_allclose(found, dense, rtol=0, atol=1e-9)
    assert outcomes[2].metrics["objective"] == pytest.approx(
        value(table.train, table.labels, objective, dense), rel=0, abs=1e-9
    )
