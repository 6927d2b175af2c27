"""Tests of asynchronous segments: the log reproduces the model and keeps window and skew; the optimum is reached."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

from benchmarks.parties import run_parties
from tests.clients.party_problems import ALGORITHMS, Case, make_case
from tests.reference import vfb2 as reference
from vertical.injection import Injection
from vertical.problem.analysis import gradient, minimum, value
from vertical.problem.blocks import make_block
from vertical.problem.blocks.base import Block
from vertical.problem.blocks.dense import DenseBlock
from vertical.problem.blocks.sparse import SparseBlock
from vertical.problem.objectives import make_objective
from vertical.segment.masked_sums import Elements, Sums
from vertical.segment.plan import Array, Holding, SegmentOutcome
from vertical.segment.shared import SegmentContext
from vertical.segment.sum_order import Agenda
from vertical.segment.updates import AsynchronousUpdates
from vertical.segment.workers import Workers
from vertical.transport.endpoint import Delays
from vertical.transport.frames import Frame, PartyError

FAR = 10**6  # a skew without effect
SHAKEN = [Injection(delays=Delays(one_way=0.0003 * (party % 3), jitter=0.002, seed=party)) for party in range(8)]


def logs_of(outcomes: list[SegmentOutcome]) -> list[list[reference.Event]]:
    assert all(outcome.log is not None for outcome in outcomes)
    return [[reference.Event(*event) for event in outcome.log or []] for outcome in outcomes]


def replayed(case: Case, outcomes: list[SegmentOutcome]) -> list[np.ndarray]:
    plan = case.plan
    frozen = [] if plan.update_passive else [party for party in range(plan.parties) if party not in plan.active]
    parties = reference.make_parties(
        case.problem(), case.features, case.columns, plan.algorithm, plan.step, frozen=frozen
    )
    return reference.replay(case.problem(), parties, case.labels, plan.active, case.epochs(), logs_of(outcomes))


def check_logs(case: Case, outcomes: list[SegmentOutcome], window: int | None = None) -> None:
    plan = case.plan
    counts, barrier = [len(batches) for batches in case.epochs()[0]], plan.algorithm == "svrg"
    window, skew = window or plan.window, plan.skew or FAR
    reference.check_logs(logs_of(outcomes), plan.active, counts, plan.epochs, window, skew, barrier=barrier)


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("sgd", "logistic", {"masking": "pairwise", "window": 3}),
    ("sgd", "robust", {"masking": "two-trees", "window": 2, "skew": 2}),
    ("svrg", "ridge", {"masking": "pairwise", "window": 4, "skew": 1}),
    ("svrg", "nonconvex-logistic", {"masking": "two-trees", "window": 3}),
    ("saga", "logistic", {"masking": "pairwise", "window": 5, "skew": 3}),
    ("saga", "ridge", {"masking": "two-trees", "window": 1}),
    ("saga", "logistic", {"masking": "pairwise", "window": 3, "update_passive": False}),
]


@pytest.mark.parametrize(("algorithm", "problem", "fields"), CASES)
def test_the_model_is_that_of_the_log(algorithm: str, problem: str, fields: dict[str, Any]) -> None:
    case = make_case(
        5, (3, 0, 1), rows=40, batch_size=3, algorithm=algorithm, problem=problem, epochs=3, step=0.02, **fields
    )
    outcomes = case.run(events=True, injections=SHAKEN[:5])
    for outcome, block in zip(outcomes, replayed(case, outcomes), strict=True):
        np.testing.assert_allclose(outcome.weights, block, rtol=0, atol=1e-9)
    check_logs(case, outcomes)
    # the run was asynchronous: the parties applied the updates in different orders
    orders = {tuple(event for event in log if event.kind == "apply") for log in logs_of(outcomes)}
    assert len(orders) > 1
    assert all(outcome.counters["max_delay"] <= case.plan.window - 1 for outcome in outcomes)


def test_the_window_is_used_and_kept() -> None:
    case = make_case(4, (0,), rows=60, batch_size=2, window=4, step=0.01)
    outcomes = case.run(events=True, injections=[Injection(delays=Delays(one_way=0.002))] * 4)
    check_logs(case, outcomes)
    with pytest.raises(ValueError, match="outside window"):
        check_logs(case, outcomes, window=3)
    assert [outcome.counters["max_delay"] for outcome in outcomes] == [0, 3, 3, 3]
    for outcome, block in zip(outcomes, replayed(case, outcomes), strict=True):
        np.testing.assert_allclose(outcome.weights, block, rtol=0, atol=1e-9)


class Gifts(Sums):
    """A stand-in that only records the slice of each update that a party contributes to."""

    def __init__(self, me: int, agenda: Agenda) -> None:
        super().__init__(me, agenda, lambda to, frame: None, None)
        self.places: list[int] = []

    def _contribute(self, kind: int, index: int, elements: Elements) -> None:
        self.places.append(index)

    def receive(self, peer: int, frame: Frame) -> bool:
        return False

    def take(self, kind: int) -> Array | None:
        return None


def test_the_skew_holds_the_fast_dominator_back() -> None:
    """Dominators 0 and 1 have 5 updates of one row in each of two epochs; party 3 is passive."""
    plan = make_case(4, (0, 1), rows=10, batch_size=1, epochs=2, window=4, skew=2).plan
    objective, features = make_objective("logistic", 0.1), np.random.default_rng(0).standard_normal((10, 3))
    block = make_block(features, "sgd", objective, 0.1)
    gifts = Gifts(3, Agenda(plan))
    ended: list[bool] = []
    common = (3, plan, Agenda(plan), Holding(features), objective, block, gifts, None, None)
    context = SegmentContext(*common, later=lambda call: call(), done=lambda: ended.append(True))
    updates = AsynchronousUpdates(context, [[5, 5], [10, 10]], Workers())

    def thetas(place: int, *numbers: int) -> list[int]:
        """Return the updates that the party contributes to after these thetas of a slice."""
        gifts.places.clear()
        for number in numbers:
            updates.take_theta(place, number, np.array([0.1]).tobytes())
        return sorted(gifts.places)

    updates.begin()
    # no update is applied: updates 0, 1 and 2 of each may be under way, although the window is 4
    assert sorted(gifts.places) == [0, 0, 0, 1, 1, 1]
    with pytest.raises(PartyError, match="party 0: it sent theta 1, but 0 is the next"):
        updates.take_theta(0, 1, bytes(8))
    # 0 runs ahead, 1 has applied none
    assert thetas(0, 0, 1, 2) == []
    # 1 has applied one update: update 3 of both may start
    assert thetas(1, 0) == [0, 1]
    assert thetas(1, 1) == [0, 1]
    # all five updates of 0 are sent and applied; only 1 has updates left
    assert thetas(0, 3, 4) == []
    assert thetas(1, 2, 3) == []
    with pytest.raises(PartyError, match="party 0: it sent theta 5, but 5 is the next and is not due"):
        updates.take_theta(0, 5, bytes(8))
    assert not ended
    assert thetas(1, 4) == []
    assert ended == [True]
    # the next stretch counts from its barrier
    gifts.places.clear()
    updates.begin()
    assert sorted(gifts.places) == [0, 0, 0, 1, 1, 1]
    assert (context.tally.max_delay, context.tally.applied) == (2, 10)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_skew_ends_although_slices_differ_by_a_batch_in_every_epoch(algorithm: str) -> None:
    # 9 rows: slices of 5 and 4 rows with batches of one drift apart by one an epoch
    case = make_case(3, (2, 0), rows=9, batch_size=1, window=3, skew=1, epochs=12, step=0.01, algorithm=algorithm)
    assert case.run()[0].counters["updates"] == 12 * 9


@pytest.mark.parametrize(
    ("algorithm", "problem", "step", "weight"),
    [
        ("svrg", "logistic", 0.3, 0.1),
        ("saga", "nonconvex-logistic", 0.4, 0.1),
        ("saga", "ridge", 0.03, 0.1),
        ("svrg", "robust", 0.1, 0.0),
    ],
)
def test_three_dominators_with_windows_reach_the_optimum(
    algorithm: str, problem: str, step: float, weight: float
) -> None:
    fields = {"algorithm": algorithm, "problem": problem, "step": step, "weight": weight}
    case = make_case(4, (0, 2, 3), rows=36, columns=6, batch_size=6, window=3, epochs=80, **fields)
    if problem == "nonconvex-logistic":
        case.labels[::3] *= -1  # a model that separates the labels would diverge
    objective, weights = make_objective(problem, weight), case.whole(case.run())
    assert np.linalg.norm(gradient(case.features, case.labels, objective, weights)) < 1e-4
    if problem in ("logistic", "ridge"):  # convex: one stationary point
        _, lowest = minimum(case.features, case.labels, objective)
        assert value(case.features, case.labels, objective, weights) - lowest < 1e-8


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_threads_within_a_party(kind: str) -> None:
    case = make_case(
        4, (0, 2, 3), rows=60, columns=8, batch_size=5, window=2, algorithm="svrg", weight=0.1, step=0.3, epochs=20
    )
    holdings = case.holdings if kind == "dense" else case.sparse_holdings
    outcomes = run_parties(holdings, case.plan, processes=False, threads=3)[0]
    objective = make_objective("logistic", 0.1)
    _, lowest = minimum(case.features, case.labels, objective)
    assert value(case.features, case.labels, objective, case.whole(outcomes)) - lowest < 1e-5
    assert all(outcome.counters["updates"] == 20 * 12 for outcome in outcomes)


@pytest.mark.parametrize(
    ("kind", "block", "algorithm"),
    [("dense", DenseBlock, "svrg"), ("dense", DenseBlock, "saga"), ("sparse", SparseBlock, "svrg")],
)
def test_threads_share_a_block_only_if_it_is_dense_and_has_no_running_mean(
    monkeypatch: pytest.MonkeyPatch, kind: str, block: type[Block], algorithm: str
) -> None:
    inside: Counter[int] = Counter()
    most: list[int] = []
    apply = block.apply

    def slow(self: Block, rows: Any, theta: Any) -> None:
        inside[id(self)] += 1
        most.append(inside[id(self)])
        time.sleep(0.003)
        inside[id(self)] -= 1
        apply(self, rows, theta)

    monkeypatch.setattr(block, "apply", slow)
    case = make_case(3, (0, 1, 2), rows=30, batch_size=5, window=2, algorithm=algorithm)
    holdings = case.holdings if kind == "dense" else case.sparse_holdings
    run_parties(holdings, case.plan, processes=False, threads=3, timeout=30.0)
    assert (max(most) > 1) == (kind == "dense" and algorithm != "saga")


@pytest.mark.parametrize(
    ("active", "fields", "computing"),
    [
        ((2,), {"masking": "two-trees"}, {}),
        # each round has its own order
        ((2, 1), {"synchronous": True}, {}),
        ((0, 1, 2), {"synchronous": True, "rows": 31, "batch_size": 2}, {0: 0.001, 2: 0.003}),
    ],
)
def test_threads_and_stragglers_change_nothing_in_order(
    active: tuple[int, ...], fields: dict[str, Any], computing: dict[int, float]
) -> None:
    case = make_case(4, active, algorithm="saga", **fields)
    outcomes = case.run(threads=3, injections=[Injection(compute=computing.get(party, 0.0)) for party in range(4)])
    np.testing.assert_allclose(case.whole(outcomes), case.centralised(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("synchronous", [False, True])
def test_injected_time_is_spent_and_changes_nothing_else(synchronous: bool) -> None:
    case = make_case(3, (1,), algorithm="svrg", synchronous=synchronous, batch_size=3, epochs=2)
    outcomes = case.run(injections=[Injection(compute=0.004), None, Injection(compute=0.001)], events=True)
    np.testing.assert_allclose(case.whole(outcomes), case.centralised(), rtol=0, atol=1e-9)
    # 20 updates, one after another: party 0 sleeps 4 ms for each
    assert all(20 * 0.004 <= outcome.counters["seconds_training"] < 20 * 0.1 for outcome in outcomes)


def test_injected_time_occupies_a_worker_a_thread() -> None:
    case = make_case(3, (0, 1), rows=40, batch_size=2, epochs=1, window=4)
    # long compared to other delays of a busy machine in 20 updates
    injections = [None, None, Injection(compute=0.04)]
    one, two = (case.run(injections=injections, threads=threads)[2].counters["seconds_training"] for threads in (1, 2))
    assert one >= 20 * 0.04
    assert 10 * 0.04 <= two < 0.8 * one
