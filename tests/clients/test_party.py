"""Tests of a segment's mathematics: without delay the parties compute the same as one machine with all columns."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from benchmarks.parties import PartiesError, run_parties
from problems.binned_scores import centres, codes, find_bins, first_edges
from problems.metrics import binary_metrics
from tests.clients.party_problems import ALGORITHMS, PROBLEMS, Case, make_case
from tests.reference.vertical import train
from vertical.problem.objectives import make_objective
from vertical.segment.plan import Holding, PartyState
from vertical.segment.sum_order import BINS

MASKINGS = ("pairwise", "two-trees")
# parties, batch size: one row, a size that does not divide the rows, and the whole slice
SHAPES = ((3, 4), (4, 1), (6, 7), (4, 0), (3, 1), (6, 4))
GRID = [
    (algorithm, problem, MASKINGS[place % 2 ^ place // 4 % 2], *SHAPES[place % len(SHAPES)])
    for place, (algorithm, problem) in enumerate(product(ALGORITHMS, PROBLEMS))
]


@pytest.mark.parametrize(("algorithm", "problem", "masking", "parties", "batch"), GRID)
def test_one_dominator_with_window_one_is_centralised(
    algorithm: str, problem: str, masking: str, parties: int, batch: int
) -> None:
    # the dominator is not the first party
    case = make_case(parties, (1,), algorithm=algorithm, problem=problem, masking=masking, batch_size=batch)
    outcomes = case.run()
    np.testing.assert_allclose(case.whole(outcomes), case.centralised(), rtol=0, atol=1e-9)
    assert all(outcome.counters["max_delay"] == 0 for outcome in outcomes)


@pytest.mark.parametrize(("algorithm", "problem", "masking", "parties", "batch"), GRID)
def test_synchronous_rounds_are_the_centralised_order(
    algorithm: str, problem: str, masking: str, parties: int, batch: int
) -> None:
    active = (2, 0, 1) if PROBLEMS.index(problem) % 2 else (1, 0)
    masking = MASKINGS[masking == "pairwise"]  # a different masking than above
    # 31 rows: the slices differ by one row, and with batches of one some dominator misses the last round
    fields = {"algorithm": algorithm, "problem": problem, "masking": masking, "batch_size": batch}
    case = make_case(parties, active, rows=31, synchronous=True, window=3, **fields)
    outcomes = case.run(events=True)
    np.testing.assert_allclose(case.whole(outcomes), case.centralised(), rtol=0, atol=1e-9)
    assert len({len(outcome.log or []) for outcome in outcomes}) == 1


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_party_alone_is_centralised(algorithm: str, synchronous: bool) -> None:
    case = make_case(1, algorithm=algorithm, batch_size=4, synchronous=synchronous, window=5, epochs=40)
    outcomes = case.run()
    np.testing.assert_allclose(case.whole(outcomes), case.centralised(), rtol=0, atol=1e-12)
    assert outcomes[0].metrics.keys() == {"objective", "loss", "accuracy", "auc"}
    assert outcomes[0].counters["frames_sent"] == 0


@pytest.mark.parametrize(
    ("parties", "active", "fields"),
    [(3, (0, 1, 2), {"algorithm": "saga", "synchronous": True}), (4, (2,), {"algorithm": "saga", "masking": "none"})],
    ids=["all are active", "without masks"],
)
def test_special_cases_are_centralised(parties: int, active: tuple[int, ...], fields: dict[str, Any]) -> None:
    case = make_case(parties, active, **fields)
    np.testing.assert_allclose(case.whole(case.run()), case.centralised(), rtol=0, atol=1e-9)


def nonfederated(case: Case, **options: Any) -> np.ndarray:
    """Return the model of the product's own solver with all columns in one place, (d,)."""
    plan = case.plan
    return train(
        case.features,
        case.labels,
        make_objective(plan.problem, plan.weight),
        plan.algorithm,
        step=plan.step,
        epochs=plan.epochs,
        batch_size=plan.batch_size,
        seed=plan.seed,
        active=len(plan.active),
        **options,
    )


@pytest.mark.parametrize(("algorithm", "synchronous"), [("svrg", True), ("saga", True), ("sgd", False)])
def test_frozen_passive_parties(algorithm: str, synchronous: bool) -> None:
    active = (1, 3) if synchronous else (1,)
    case = make_case(5, active, algorithm=algorithm, synchronous=synchronous, update_passive=False)
    start = np.random.default_rng(2).standard_normal(13)
    frozen = np.concatenate([own for party, own in enumerate(case.columns) if party not in active])
    weights = case.whole(case.run(states=[PartyState(start[own]) for own in case.columns]))
    np.testing.assert_allclose(weights, nonfederated(case, weights=start, frozen_columns=frozen), rtol=0, atol=1e-9)
    np.testing.assert_array_equal(weights[frozen], start[frozen])


def test_two_parties_need_leave_and_are_then_centralised() -> None:
    case = make_case(2, (1,))
    with pytest.raises(ValueError, match="2 parties: the dominator would learn its only collaborator's partials"):
        case.run()
    for masking in (*MASKINGS, "none"):
        outcomes = case.run(replace(case.plan, allow_bare=True, masking=masking))
        np.testing.assert_allclose(case.whole(outcomes), case.centralised(), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("algorithm", "masking"), [("sgd", "two-trees"), ("svrg", "pairwise"), ("saga", "two-trees"), ("saga", "pairwise")]
)
def test_segments_add_up_to_one_run(algorithm: str, masking: str) -> None:
    case = make_case(4, (1, 3), algorithm=algorithm, masking=masking, synchronous=True, epochs=3)
    plan = case.plan
    plans = [
        replace(plan, serial=10, epochs=0),
        replace(plan, serial=11, epochs=1, start=True),
        # a segment that only evaluates must not lose the state
        replace(plan, serial=12, segment=1, first_epoch=1, epochs=0, start=False),
        replace(plan, serial=13, segment=2, first_epoch=1, epochs=2, start=False),
    ]
    segments = run_parties(case.holdings, plans, processes=False)
    outcomes = segments[-1]
    np.testing.assert_allclose(case.whole(outcomes), case.centralised(), rtol=0, atol=1e-9)
    assert not segments[0][0].weights.any()
    assert segments[1][1].metrics == pytest.approx(segments[2][1].metrics, abs=1e-9)
    assert all((outcome.table is None) == (algorithm != "saga") for outcome in outcomes)


def test_a_party_starts_where_it_is_told() -> None:
    case = make_case(4, (0,), epochs=0)
    rng = np.random.default_rng(1)
    states = [PartyState(rng.standard_normal(len(own))) for own in case.columns]
    outcomes = case.run(states=states)
    for state, outcome in zip(states, outcomes, strict=True):
        np.testing.assert_array_equal(outcome.weights, state.weights)


def test_saga_without_its_table_is_refused() -> None:
    case = make_case(3, algorithm="saga", start=False)
    with pytest.raises(PartiesError, match=r"party \d: saga needs the table"):
        case.run()


@pytest.mark.parametrize("problem", PROBLEMS)
def test_metrics_are_those_of_the_assembled_model(problem: str) -> None:
    case = make_case(8, (5, 2), problem=problem, epochs=3, window=2, columns=17)
    outcomes = case.run()
    weights, reference = case.whole(outcomes), case.problem()
    z = case.test_features @ weights
    expected = {
        "objective": reference.value(case.features, case.labels, weights),
        "loss": float(np.mean(reference.losses(z, case.test_labels))),
    }
    if "logistic" in problem:
        expected["accuracy"] = float(np.mean(np.sign(z) == case.test_labels))
        moved = centres(first_edges(BINS))[find_bins(codes(z), first_edges(BINS))]
        expected["auc"] = binary_metrics(case.test_labels > 0, moved)["auc"]
    else:
        expected["rmse"] = float(np.sqrt(np.mean((z - case.test_labels) ** 2)))
    assert outcomes[5].metrics == pytest.approx(expected, rel=0, abs=1e-10)
    assert not any(outcome.metrics for party, outcome in enumerate(outcomes) if party != 5)


def test_without_test_rows_or_evaluation() -> None:
    case = make_case(3, (0,))
    holdings = [Holding(holding.features, None, holding.labels) for holding in case.holdings]
    outcomes = run_parties(holdings, replace(case.plan, test_rows=0), processes=False)[0]
    assert outcomes[0].metrics.keys() == {"objective"}
    outcomes = run_parties(case.holdings, replace(case.plan, evaluate=False), processes=False)[0]
    assert outcomes[0].metrics == {}


@pytest.mark.parametrize(
    ("problem", "masking", "curvature"),
    [("logistic", "two-trees", 0.25), ("ridge", "pairwise", 2.0), ("robust", "two-trees", 1.0)],
)
def test_the_curvature_is_bounded_by_the_sum_over_the_parties(problem: str, masking: str, curvature: float) -> None:
    case = make_case(4, (2, 0), problem=problem, masking=masking, curvature=True)
    case.features[:, 3] *= 3.0
    plan, asked = case.plan, case.run()[2].metrics["largest_eigenvalue"]
    moments = [np.linalg.norm(case.features[:, own], 2) ** 2 / plan.rows for own in case.columns]
    assert sum(moments) <= (asked - plan.weight) / curvature <= 1.001 * sum(moments)
    hessian = curvature / plan.rows * case.features.T @ case.features + plan.weight * np.eye(13)
    assert np.linalg.eigvalsh(hessian)[-1] < asked
    assert "largest_eigenvalue" not in case.run(replace(plan, curvature=False))[2].metrics


def test_the_curvature_of_a_party_alone_and_of_nothing() -> None:
    case = make_case(1, curvature=True)
    expected = 0.25 / 30 * np.linalg.norm(case.features, 2) ** 2 + case.plan.weight
    assert case.run()[0].metrics["largest_eigenvalue"] == pytest.approx(expected, rel=1e-3)
    case.features[:] = 0.0
    assert case.run()[0].metrics["largest_eigenvalue"] == case.plan.weight


def test_counters() -> None:
    case = make_case(4, (1, 2), rows=31, batch_size=4, epochs=3, window=2)
    outcomes = case.run()
    updates = 3 * (4 + 4)  # slices of 16 and 15 rows
    for party, outcome in enumerate(outcomes):
        counters = outcome.counters
        assert counters["updates"] == updates
        assert counters["dominated"] == (12 if party in (1, 2) else 0)
        assert 0 < counters["seconds_training"] < counters["seconds_total"]
        assert counters["max_delay"] <= 1
        assert 0 <= counters["mean_delay"] <= counters["mean_staleness"] <= counters["max_staleness"]
    sent = sum(outcome.counters["frames_sent"] for outcome in outcomes)
    # 3 partials and 3 thetas an update, 3 evaluations a dominator and 3 totals, 2 notices of labels, two barriers of 12
    assert sent == updates * 6 + 9 + 2 + 24
    assert sent == sum(outcome.counters["frames_received"] for outcome in outcomes)
