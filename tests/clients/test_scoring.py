"""Tests of segments that score rows: every recipient gets the pooled model's z, and private values stay with their
party."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.parties import PartiesError, run_parties
from tests.clients.party_problems import Case, Tape, make_case
from tests.clients.test_party_processes import LIMITS
from tests.clients.test_party_secrecy import MASKINGS, elements, exposed
from vertical.segment import sum_order
from vertical.segment.plan import Array, PartyState, SegmentOutcome
from vertical.transport.frames import Kind

SCORING = {"epochs": 0, "evaluate": False, "test_rows": 0, "score": True, "start": False}


def scored(
    case: Case, weights: Array, tapes: list[Tape] | None = None, *, processes: bool = False, **options: Any
) -> list[SegmentOutcome]:
    """Return the outcomes of a segment without labels."""
    holdings = [replace(held, test_features=None, labels=None, test_labels=None) for held in case.holdings]
    states = [PartyState(weights[own]) for own in case.columns]
    options |= {"processes": processes, "states": states, "recorders": tapes, "timeout": 60.0}
    return run_parties(holdings, case.plan, **options)[0]


@pytest.mark.parametrize("masking", MASKINGS)
@pytest.mark.parametrize(("active", "rows"), [((1,), 30), ((0, 2, 3), 30), ((0, 1, 2, 3), 1)])
def test_recipients_get_the_scores_of_the_pooled_model(
    active: tuple[int, ...], rows: int, masking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In five pieces: 4 x 7 + 2 = 30."""
    monkeypatch.setattr(sum_order, "PIECE", 7)
    case = make_case(4, active, rows=rows, masking=masking, **SCORING)
    weights = np.random.default_rng(1).standard_normal(13)
    tapes = [Tape() for _ in range(4)]
    outcomes = scored(case, weights, tapes)
    for party, outcome in enumerate(outcomes):
        if party in active:
            np.testing.assert_allclose(outcome.scores, case.features @ weights, rtol=0, atol=1e-11)
        else:
            assert outcome.scores is None
        np.testing.assert_array_equal(outcome.weights, weights[case.columns[party]])
        assert not outcome.metrics
    longest = max(len(frame.body) for tape in tapes for _, frame in tape.frames)
    assert longest <= 8 * 7
    kinds = {frame.kind for tape in tapes for _, frame in tape.frames}
    assert kinds <= {Kind.BARRIER, Kind.SCORES, Kind.VALUE_TREE, Kind.MASK_TREE}


@pytest.mark.parametrize(("masking", "seen"), [("pairwise", False), ("two-trees", False), ("none", True)])
def test_nobody_receives_a_partial_or_a_sum_over_some(masking: str, seen: bool) -> None:
    case = make_case(5, (1, 3), rows=40, masking=masking, **SCORING)
    tapes = [Tape() for _ in range(5)]
    outcomes = scored(case, np.random.default_rng(2).standard_normal(13), tapes)
    assert all({kind for kind, _, _ in tape.partials} == {Kind.SCORES} for tape in tapes)
    assert (exposed(tapes, case.plan.active, (Kind.SCORES,)) > 0) == seen
    assert outcomes[1].scores is not None
    for party in (0, 2, 4):  # parties that are not recipients learn no score either
        assert not np.isin(outcomes[1].scores.view(np.uint64), elements(tapes[party])).any()


@pytest.mark.slow
@pytest.mark.gate
def test_processes_score_over_tcp() -> None:
    case = make_case(3, (0, 2), rows=50, **SCORING)
    weights = np.random.default_rng(3).standard_normal(13)
    outcomes = scored(case, weights, processes=True, transport="tcp", limits=LIMITS)
    for party in (0, 2):
        np.testing.assert_allclose(outcomes[party].scores, case.features @ weights, rtol=0, atol=1e-9)


def test_a_sum_that_masks_cannot_hold_names_the_party_and_no_number() -> None:
    case = make_case(3, (0,), **SCORING)
    weights = np.zeros(13)
    weights[case.columns[2]] = 1e8
    with pytest.raises(PartiesError, match=r"party 2: its columns add more than 2.79\S* to the score of 30 of 30 rows"):
        scored(case, weights)


def test_a_plan_that_scores_does_nothing_else() -> None:
    plan = make_case(3, (0,), **SCORING).plan
    plan.check()
    for change in ({"epochs": 1}, {"evaluate": True}, {"test_rows": 4}):
        with pytest.raises(ValueError, match="a segment that scores rows must have no epochs"):
            replace(plan, **change).check()
