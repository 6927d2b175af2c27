"""Tests of scores from weights that stay shared, with real parties over TLS on this machine."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.attacks.decoding import Ear
from benchmarks.parties import PartiesError, run_parties
from tests.vertical.test_shares import COLUMNS, ROWS, draw_rows, plan_of, train
from vertical.problem.objectives import Array
from vertical.segment.plan import Holding, PartyState, SegmentOutcome, SegmentPlan
from vertical.shares import order as orders
from vertical.shares.order import DealOrder
from vertical.transport.frames import Kind


def train_and_keep(plan: SegmentPlan) -> list[PartyState]:
    """Train, and return the parties' states with shares of the weights."""
    outcomes = train(replace(plan, keep_shared=True), *draw_rows(plan.problem))
    assert not any(outcome.weights.any() for outcome in outcomes)
    return [PartyState(share=outcome.rounded) for outcome in outcomes]


def score(plan: SegmentPlan, states: list[PartyState], features: Array, **options: Any) -> list[SegmentOutcome]:
    """Score rows with the parties' shares."""
    scored = replace(plan, rows=len(features), test_rows=0, epochs=0, evaluate=False, score=True, last=False)
    blocks = [np.ascontiguousarray(block) for block in np.split(features, np.cumsum(plan.columns[:-1]), axis=1)]
    return run_parties([Holding(block) for block in blocks], scored, processes=False, states=states, **options)[0]


@pytest.mark.parametrize("recipients", [(0,), (0, 1)])
@pytest.mark.parametrize(("problem", "parties"), [("logistic", 2), ("ridge", 3)])
def test_shared_weights_score_as_opened_weights(
    problem: str, parties: int, recipients: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "PIECE", 64)
    plan = plan_of(problem, parties)
    opened = np.concatenate([outcome.weights for outcome in train(plan, *draw_rows(problem))])
    rows = np.random.default_rng(1).normal(size=(150, COLUMNS)) * np.where(np.arange(150) < 140, 1.0, 1000.0)[:, None]
    outcomes = score(replace(plan, active=recipients), train_and_keep(plan), rows)
    for party, outcome in enumerate(outcomes):
        if party in recipients:
            # fresh random numbers change the rounding, and so each weight by up to about 1e-4
            error = np.abs(outcome.scores - rows @ opened)  # type: ignore[operator]
            assert (error <= 3e-4 * (1.0 + np.abs(rows).sum(axis=1))).all()
            assert np.abs(rows @ opened).max() > 128.0  # beyond the period of a slope
        else:
            assert outcome.scores is None


def test_frames_of_a_score_run_are_uniform() -> None:
    """All rows and weights are equal, so a number that is not masked occurs in every row."""
    plan, rows = plan_of("logistic", 2), np.full((3000, COLUMNS), 0.5)
    ears = [Ear(), Ear()]
    score(plan, train_and_keep(plan), rows, recorders=ears)
    kinds = [{frame.kind for frame in ear.frames} & {Kind.BLOCK, Kind.SCORES, Kind.WAVE_SUMS} for ear in ears]
    assert kinds == [{Kind.SCORES}, set()]
    for ear in ears:
        for frame in ear.frames:
            if frame.kind in (Kind.MASKED_FEATURES, Kind.SCORES):
                assert len({*np.frombuffer(frame.body, np.uint64).tolist()}) == len(frame.body) // 8
                counts = np.bincount(np.frombuffer(frame.body, np.uint8), minlength=256)
                # chi-squared with 255 degrees of freedom: above 400 once in ten million times
                assert np.square(counts - counts.mean()).sum() / counts.mean() < 400


def test_features_that_could_exceed_the_range_of_scores_are_refused() -> None:
    plan = plan_of("logistic", 2)
    states, rows = train_and_keep(plan), np.zeros((200, COLUMNS))
    rows[7, -1] = 9000.0
    with pytest.raises(PartiesError, match=r"party 1: the features of 1 of 200 rows add up to 8,192 or more"):
        score(plan, states, rows)


@pytest.mark.parametrize("field", ["truncated", "products"])
def test_wrong_numbers_of_the_dealer_end_a_score_run(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dealer falsifies both choices."""
    plan = plan_of("logistic", 2)
    states, honest = train_and_keep(plan), DealOrder.deal

    def lie(order: DealOrder) -> list[bytes]:
        first, last = map(bytearray, honest(order))
        words, (start, count) = np.frombuffer(last, np.uint64, offset=96), (0, 2 * COLUMNS)
        if field == "products":
            start, count = count, 2 * order.rows
        words[start : start + count] += np.uint64(1)
        return [bytes(first), bytes(last)]

    monkeypatch.setattr(DealOrder, "deal", lie)
    with pytest.raises(PartiesError, match=r"the dealer's numbers of update 0 are wrong"):
        score(plan, states, draw_rows("logistic")[0][:ROWS])
