"""Tests that repeated or resumed segments end exactly like undisturbed segments.

With one active party and one update under way (m = 1, W = 1) the order of messages has no effect. For whole runs see
`tests.battery.test_resume` and `tests.apps.test_vertical_failures`.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.parties import PartiesError, run_parties
from tests.clients.party_problems import ALGORITHMS, Case, make_case
from tests.vertical.sabotage import FULL
from vertical.problem.blocks.dense import DenseBlock
from vertical.segment.plan import PartyState, SegmentOutcome, SegmentPlan
from vertical.transport.endpoint import Limits

LIMITS = Limits(join=5.0, beat=0.3, silence=3.0, close=1.0)
SEGMENTS = 4


def case_of(algorithm: str, **fields: Any) -> Case:
    return make_case(4, (1,), algorithm=algorithm, rows=60, batch_size=5, epochs=1, step=0.03, **fields)


def plans_of(case: Case, first: int = 0, attempts: int = 0) -> list[SegmentPlan]:
    """Return the plans of the segments from `first` on, each of one epoch; serials count every attempt."""
    return [
        replace(case.plan, serial=10 + segment + attempts, segment=segment, first_epoch=segment, start=segment == 0)
        for segment in range(first, SEGMENTS)
    ]


def states(outcomes: Sequence[SegmentOutcome]) -> list[PartyState]:
    """Return the parties' states, as a file would store them."""
    kept: list[PartyState] = pickle.loads(pickle.dumps([outcome.state for outcome in outcomes]))
    return kept


def play_segments(
    case: Case, plans: Sequence[SegmentPlan], start: list[PartyState] | None = None, **options: Any
) -> list[list[SegmentOutcome]]:
    return run_parties(case.holdings, plans, **{"processes": False, "states": start, "limits": LIMITS, **options})


def assert_same(left: Sequence[SegmentOutcome], right: Sequence[SegmentOutcome]) -> None:
    for mine, theirs in zip(left, right, strict=True):
        np.testing.assert_array_equal(mine.weights, theirs.weights)
        np.testing.assert_array_equal(mine.table, theirs.table)
        assert mine.metrics == theirs.metrics


def break_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make party 0, the only party with four columns, fail at its eighth update; return the list of its updates so
    far."""
    applied: list[int] = []
    apply = DenseBlock.apply

    def fragile(block: DenseBlock, rows: Any, theta: Any) -> None:
        if block.columns == 4 and len(applied) < 8:
            applied.append(len(rows))
            if len(applied) == 8:
                raise OSError(FULL)
        apply(block, rows, theta)

    monkeypatch.setattr(DenseBlock, "apply", fragile)
    return applied


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_segment_that_failed_midway_is_made_again(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other parties have updated their blocks by then; their stored states stay unchanged."""
    case = case_of(algorithm)
    whole = play_segments(case, plans_of(case))
    kept = states(whole[1])
    before = pickle.dumps(kept)
    applied = break_once(monkeypatch)
    with pytest.raises(PartiesError) as caught:
        play_segments(case, plans_of(case, 2)[:1], kept)
    assert len(applied) == 8
    assert {str(error) for error in caught.value.errors.values()} == {f"party 0: OSError: {FULL}"}
    assert pickle.dumps(kept) == before
    again = play_segments(case, plans_of(case, 2, attempts=1), kept)
    for here, there in zip(again, whole[2:], strict=True):
        assert_same(here, there)


@pytest.mark.parametrize(("algorithm", "masking"), [("sgd", "pairwise"), ("svrg", "two-trees"), ("saga", "pairwise")])
def test_a_run_goes_on_from_what_it_kept(algorithm: str, masking: str) -> None:
    case = case_of(algorithm, masking=masking)
    whole = play_segments(case, plans_of(case))
    for cut in range(1, SEGMENTS):
        rest = play_segments(case, plans_of(case, cut, attempts=5), states(whole[cut - 1]))
        assert_same(rest[-1], whole[-1])
    assert whole[-1][0].weights.tobytes() != whole[-2][0].weights.tobytes()
