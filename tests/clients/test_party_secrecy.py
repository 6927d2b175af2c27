"""Tests of the data that parties see of one another: masked vectors, sums and theta, but no private labels."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from benchmarks.parties import PartiesError, run_parties
from tests.clients.party_problems import Case, Tape, make_case
from tests.reference import vfb2 as reference
from vertical.masking.pairwise import RING
from vertical.segment.plan import PartyState, SegmentOutcome, SegmentPlan
from vertical.transport.frames import Kind

SUM_KINDS = {Kind.PARTIAL, Kind.SNAPSHOT_PARTIAL, Kind.EVALUATION, Kind.TOTALS, Kind.VALUE_TREE, Kind.MASK_TREE}
MASKINGS = ("pairwise", "two-trees")


def recorded(case: Case) -> tuple[list[Tape], list[SegmentOutcome]]:
    tapes = [Tape() for _ in case.columns]
    rng = np.random.default_rng(4)
    states = [PartyState(rng.standard_normal(len(own))) for own in case.columns]
    return tapes, case.run(recorders=tapes, states=states)


def elements(tape: Tape, kinds: set[Kind] | None = None) -> np.ndarray:
    """Return all 8-byte words that a party received, as uint64."""
    bodies = [frame.body for _, frame in tape.frames if kinds is None or frame.kind in kinds]
    return np.frombuffer(b"".join(body for body in bodies if len(body) % 8 == 0), dtype=np.uint64)


def sums_of(tapes: list[Tape], parties: tuple[int, ...], active: int, kind: int) -> np.ndarray:
    """Return the sum over some parties of all their contributions to a dominator, one after another, in the ring."""
    vectors = [np.concatenate([v for k, a, v in tapes[p].partials if (k, a) == (kind, active)]) for p in parties]
    return np.add.reduce([RING.encode(vector) for vector in vectors], dtype=np.uint64)


def exposed(
    tapes: list[Tape], active: tuple[int, ...], kinds: tuple[int, ...] = (Kind.PARTIAL, Kind.SNAPSHOT_PARTIAL)
) -> int:
    """Count the true encodings, of one party or of a sum over some but not all collaborators, among the received
    words."""
    count = 0
    for me, tape in enumerate(tapes):
        seen = np.concatenate([elements(tape), _differences(tape)])
        for dominator in active:
            others = [p for p in range(len(tapes)) if p not in (dominator, me)]
            for size in range(1, len(others) + (me != dominator)):
                for group in combinations(others, size):
                    for kind in kinds:
                        count += int(np.isin(sums_of(tapes, group, dominator, kind), seen).sum())
        for other, theirs in enumerate(tapes):
            if other != me:
                bare = np.concatenate([np.zeros(0), *(values for _, _, values in theirs.partials)])
                bare = bare[bare != 0]  # the slopes under a ReLU are zero too
                count += int(np.isin(bare.view(np.uint64), seen).sum())
                count += int(np.isin(RING.encode(bare), seen).sum())
    return count


def _differences(tape: Tape) -> np.ndarray:
    """Return all differences of a value frame and a mask frame of the same sum that a party received."""
    frames = [frame for _, frame in tape.frames]
    found = [
        np.frombuffer(value.body, dtype=np.uint64) - np.frombuffer(mask.body, dtype=np.uint64)
        for value in frames
        if value.kind == Kind.VALUE_TREE
        for mask in frames
        if (mask.kind, mask.active, mask.update) == (Kind.MASK_TREE, value.active, value.update)
    ]
    return np.concatenate([np.zeros(0, dtype=np.uint64), *found])


@pytest.mark.parametrize(
    ("masking", "algorithm", "seen"),
    [
        ("pairwise", "svrg", False),
        ("pairwise", "saga", False),
        ("two-trees", "svrg", False),
        ("two-trees", "saga", False),
        # without masking, the search finds the encodings
        ("none", "svrg", True),
    ],
)
def test_nobody_receives_a_partial_or_a_sum_over_some(masking: str, algorithm: str, seen: bool) -> None:
    fields = {"masking": masking, "algorithm": algorithm}
    case = make_case(5, (1, 3), rows=40, batch_size=5, window=2, **fields)
    tapes, _ = recorded(case)
    assert all(tape.partials for tape in tapes)
    count = exposed(tapes, case.plan.active)
    assert count > 1000 if seen else count == 0


@pytest.mark.parametrize("masking", MASKINGS)
def test_zeros_are_hidden_too(masking: str) -> None:
    # every weight is zero in the first partials, and an unmasked zero is easily seen
    tapes = [Tape() for _ in range(4)]
    make_case(4, (0,), masking=masking, epochs=0).run(recorders=tapes)
    assert not any((elements(tape, SUM_KINDS) == 0).any() for tape in tapes)


@pytest.mark.parametrize("masking", MASKINGS)
def test_what_is_received_is_uniform_and_uncorrelated(masking: str) -> None:
    case = make_case(6, (0, 4), rows=300, columns=20, batch_size=10, masking=masking, epochs=4, window=3)
    tapes, _ = recorded(case)
    for me, tape in enumerate(tapes):
        counts = np.bincount(elements(tape, SUM_KINDS).view(np.uint8), minlength=256)
        expected = max(counts.sum() / 256, 1.0)
        # chi-square with 255 degrees of freedom: above 420 once in 10^9
        assert np.sum((counts - expected) ** 2) / expected < 420 or not counts.any(), f"party {me}"
    # one child's masked values against its true values, position by position
    kind = Kind.PARTIAL if masking == "pairwise" else Kind.VALUE_TREE
    for sender in (1, 2, 3, 5):
        frames = {
            frame.update: frame.body
            for tape in tapes
            for peer, frame in tape.frames
            if (peer, frame.kind, frame.active, len(frame.body)) == (sender, kind, 0, 80)
        }
        true = np.concatenate([values for *address, values in tapes[sender].partials if address == [Kind.PARTIAL, 0]])
        masked = np.frombuffer(b"".join(frames[t] for t in sorted(frames)), dtype=np.int64).astype(float)
        assert len(true) == len(masked) == 600
        assert abs(np.corrcoef(true, masked)[0, 1]) < 6 / np.sqrt(len(true))


@pytest.mark.parametrize("masking", MASKINGS)
def test_no_mask_comes_twice(masking: str) -> None:
    case = make_case(4, (2,), masking=masking, algorithm="sgd", step=1e-30, epochs=3, batch_size=0, seed=1)
    plans = [replace(case.plan, serial=serial, start=serial == 1) for serial in (1, 2)]
    tapes = [Tape() for _ in range(4)]
    states = [PartyState(np.full(len(own), 1.5)) for own in case.columns]
    run_parties(case.holdings, plans, processes=False, recorders=tapes, states=states)
    # the same partials again and again, in six updates of two segments
    bodies = [bytes(frame.body) for tape in tapes for _, frame in tape.frames if frame.kind in SUM_KINDS]
    assert len(set(bodies)) == len(bodies)


def test_passive_parties_see_no_theta_where_they_do_not_update() -> None:
    case = make_case(4, (0, 2), algorithm="svrg", update_passive=False)
    tapes, _ = recorded(case)
    for party, tape in enumerate(tapes):
        bodies = [frame.body for _, frame in tape.frames if frame.kind in (Kind.THETA, Kind.SNAPSHOT_THETA)]
        assert bodies
        assert all((len(body) > 0) == (party in (0, 2)) for body in bodies)


# label privacy


def private_case(**fields: object) -> Case:
    return make_case(4, (2, 0), rows=200, batch_size=16, label_epsilon=1.0, synchronous=True, **fields)


def corrected(case: Case, flips: np.ndarray, plans: list[SegmentPlan]) -> np.ndarray:
    """Return the reference's model on flipped labels, with the loss that corrects for them."""
    plan = case.plan
    problem = reference.Corrected(plan.problem, plan.weight, reference.flip_rate(plan.label_epsilon))
    epochs = [epoch for each in plans for epoch in case.epochs(each)]
    labels = np.where(flips, -case.labels, case.labels)
    return reference.centralised(problem, case.features, labels, plan.algorithm, plan.step, epochs)


@pytest.mark.parametrize("algorithm", ["sgd", "svrg", "saga"])
def test_training_is_on_flipped_labels_and_evaluation_on_true_ones(algorithm: str) -> None:
    case = private_case(algorithm=algorithm)
    outcomes = case.run()
    flips = outcomes[2].flips
    assert flips is not None
    # r = 0.27 of 200: 54 +- 6 standard deviations of 6.3
    assert 17 < flips.sum() < 91
    weights = case.whole(outcomes)
    np.testing.assert_allclose(weights, corrected(case, flips, [case.plan]), rtol=0, atol=1e-9)
    expected = case.problem().value(case.features, case.labels, weights)
    assert outcomes[2].metrics["objective"] == pytest.approx(expected, abs=1e-9)


def test_flips_are_drawn_once_a_run_and_anew_in_another() -> None:
    case = private_case(algorithm="saga")
    plans = [
        replace(case.plan, serial=1, epochs=1),
        replace(case.plan, serial=2, epochs=2, first_epoch=1, start=False, segment=1),
    ]
    first, second = run_parties(case.holdings, plans, processes=False)
    assert first[2].flips is not None
    for outcome in (first[0], second[0], second[2]):
        np.testing.assert_array_equal(outcome.flips, first[2].flips)
    assert first[1].flips is None
    assert second[3].flips is None
    np.testing.assert_allclose(case.whole(second), corrected(case, first[2].flips, plans), rtol=0, atol=1e-9)
    again = case.run(plans[0])
    assert not np.array_equal(again[2].flips, first[2].flips)


def test_flips_outlive_a_segment_that_fails() -> None:
    # otherwise the next attempt would draw new flips, and both draws would have been revealed
    case = private_case(step=1e9)
    states = [PartyState() for _ in range(4)]
    with pytest.raises(PartiesError):
        case.run(states=states)
    kept = states[2].flips
    assert kept is not None
    assert states[1].flips is None
    outcomes = case.run(replace(case.plan, serial=8, step=0.1), states=states)
    for flips in (states[0].flips, outcomes[2].flips):
        np.testing.assert_array_equal(flips, kept)


def test_flips_go_to_active_parties_only_and_labels_to_nobody() -> None:
    case = private_case()
    tapes = [Tape() for _ in range(4)]
    outcomes = case.run(recorders=tapes)
    flips = outcomes[2].flips
    assert flips is not None
    packed = np.packbits(flips).tobytes()
    secrets = [case.labels.tobytes(), np.packbits(case.labels > 0).tobytes(), np.packbits(case.labels < 0).tobytes()]
    for party, tape in enumerate(tapes):
        bodies = [bytes(frame.body) for _, frame in tape.frames]
        assert any(packed in body for body in bodies) == (party == 0)
        assert any(frame.kind == Kind.LABELS for _, frame in tape.frames) == (party in (0, 2))
        assert not any(secret in body for secret in secrets for body in bodies)
