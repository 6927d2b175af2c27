"""Tests of segments with networks: the updates match a central split network, and frames reveal nothing more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.parties import PartiesError, run_parties
from problems.metrics import binary_metrics
from tests.clients.party_problems import Case, Tape, make_case
from tests.clients.test_party_secrecy import MASKINGS, SUM_KINDS, elements, exposed
from tests.reference import split_network, vfb2
from vertical.problem.blocks.network import HIDDEN, Architecture, make_network
from vertical.problem.head import Head
from vertical.problem.objectives import make_objective
from vertical.segment.plan import PartyState, SegmentOutcome
from vertical.transport.frames import Kind

# each party has its own network: two are linear, one has a hidden layer
MODELS = ("linear", "mlp", "linear", "mlp", "linear")


def architectures(case: Case) -> list[Architecture]:
    return [Architecture(MODELS[party], 10 * party) for party in range(len(case.columns))]


def reference_of(case: Case) -> tuple[split_network.Headed, list[split_network.Part]]:
    """Return the reference's problem and parts, at the parties' first weights."""
    plan, k = case.plan, case.plan.embedding
    objective = make_objective(plan.problem, plan.weight)
    own = architectures(case)
    v = Head(k, own[plan.active[0]].seed + 1, objective, plan.step).weights if plan.headed else None
    parts: list[split_network.Part] = []
    if plan.problem == "softmax":
        problem: split_network.Headed = split_network.Softmax(plan.weight, plan.step)
    else:
        problem = split_network.Headed(plan.problem, plan.weight, plan.step, v)
    for columns, one in zip(case.columns, own, strict=True):
        d = len(columns)
        sizes = (d, k) if one.model == "linear" else (d, HIDDEN, k)
        w = make_network(one, d, k).weights
        parts.append(split_network.Part(case.features[:, columns], problem, sizes, plan.step, w))
    return problem, parts


def play(case: Case, **options: Any) -> list[SegmentOutcome]:
    return case.run(networks=architectures(case), **options)


def assert_equal(case: Case, outcomes: list[SegmentOutcome], problem: split_network.Headed, parts: Any) -> None:
    for outcome, part in zip(outcomes, parts, strict=True):
        np.testing.assert_allclose(outcome.weights, part.w, rtol=0, atol=1e-9)
    owner = case.plan.active[0]
    assert [party for party, one in enumerate(outcomes) if one.head is not None] == [owner] * (problem.v is not None)
    if problem.v is not None:
        np.testing.assert_allclose(outcomes[owner].head, problem.v, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("parties", "embedding", "fields"),
    [
        (3, 5, {}),
        (3, 3, {"synchronous": True, "masking": "two-trees", "problem": "nonconvex-logistic"}),
        (4, 2, {"batch_size": 0, "problem": "ridge", "masking": "two-trees", "step": 0.005}),
        (3, 1, {"problem": "robust", "batch_size": 7}),
        (3, 3, {"problem": "softmax", "masking": "two-trees"}),
    ],
)
def test_one_dominator_without_delay_is_the_central_split_network(
    parties: int, embedding: int, fields: dict[str, Any]
) -> None:
    case = make_case(parties, (1,), embedding=embedding, epochs=3, **fields)
    problem, parts = reference_of(case)
    split_network.central(problem, parts, case.labels, case.epochs())
    assert_equal(case, play(case), problem, parts)


@pytest.mark.parametrize("fields", [{"embedding": 1}, {"embedding": 4, "problem": "softmax"}])
def test_several_dominators_in_rounds_share_a_sum_that_is_the_prediction(fields: dict[str, Any]) -> None:
    case = make_case(4, (2, 0), rows=31, synchronous=True, **fields)
    problem, parts = reference_of(case)
    split_network.central(problem, parts, case.labels, case.epochs())
    assert_equal(case, play(case), problem, parts)


@pytest.mark.parametrize(
    ("active", "embedding", "fields"),
    [((1,), 4, {"window": 3}), ((1,), 4, {"window": 3, "threads": 3}), ((0, 3), 1, {"window": 2, "skew": 2})],
)
def test_delayed_updates_are_those_of_the_log(active: tuple[int, ...], embedding: int, fields: dict[str, Any]) -> None:
    threads = fields.pop("threads", 1)
    case = make_case(4, active, rows=40, embedding=embedding, masking="none", **fields)
    outcomes = play(case, events=True, threads=threads)
    problem, parts = reference_of(case)
    logs = [[vfb2.Event(*event) for event in outcome.log or []] for outcome in outcomes]
    if threads == 1:  # otherwise the log has the order of arrival, not of the computations
        vfb2.replay(problem, parts, case.labels, active, case.epochs(), logs)
        assert_equal(case, outcomes, problem, parts)
    assert max(outcome.counters["max_delay"] for outcome in outcomes) > 0
    assert all(np.isfinite(outcome.weights).all() for outcome in outcomes)


def test_metrics_are_those_of_the_assembled_network() -> None:
    case = make_case(3, (1,), embedding=4, label_epsilon=2.0)
    outcomes = play(case)
    problem, parts = reference_of(case)
    problem.v = outcomes[1].head
    tested = np.zeros((11, 4))
    for columns, part, outcome in zip(case.columns, parts, outcomes, strict=True):
        part.w = outcome.weights
        tested += [split_network.embed(part.sizes, part.w, x)[-1] for x in case.test_features[:, columns]]
    z = problem.predict(tested)
    expected = {
        "objective": problem.objective(parts, np.arange(30), case.labels),
        "loss": float(np.mean(problem.losses(z, case.test_labels))),
        "accuracy": float(np.mean(np.sign(z) == case.test_labels)),
        "auc": binary_metrics(case.test_labels > 0, z)["auc"],
    }
    assert outcomes[1].metrics == pytest.approx(expected, rel=0, abs=1e-9)


def test_metrics_of_several_classes_are_added_up_over_dominators() -> None:
    case = make_case(4, (2, 0), embedding=3, problem="softmax")
    outcomes = play(case)
    problem, parts = reference_of(case)
    tested = np.zeros((11, 3))
    for columns, part, outcome in zip(case.columns, parts, outcomes, strict=True):
        part.w = outcome.weights
        tested += [split_network.embed(part.sizes, part.w, x)[-1] for x in case.test_features[:, columns]]
    expected = {
        "objective": problem.objective(parts, np.arange(30), case.labels),
        "loss": float(np.mean(problem.losses(tested, case.test_labels))),
        "accuracy": float(np.mean(tested.argmax(axis=1) == case.test_labels)),
    }
    assert outcomes[2].metrics == pytest.approx(expected, rel=0, abs=1e-9)


def test_segments_go_on_from_weights_and_head() -> None:
    case = make_case(3, (1,), embedding=4, epochs=2, evaluate=False)
    first = replace(case.plan, serial=10, epochs=1)
    second = replace(case.plan, serial=11, segment=1, epochs=1, first_epoch=1, start=False)
    whole, parts = (
        play(case),
        run_parties(case.holdings, [first, second], processes=False, networks=architectures(case)),
    )
    for one, other in zip(whole, parts[-1], strict=True):
        np.testing.assert_allclose(one.weights, other.weights, rtol=0, atol=1e-12)
    np.testing.assert_allclose(whole[1].head, parts[-1][1].head, rtol=0, atol=1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize(("masking", "seen"), [("pairwise", False), ("two-trees", False), ("none", True)])
def test_nobody_receives_an_embedding_or_a_sum_over_some(masking: str, seen: bool) -> None:
    case = make_case(5, (1,), rows=40, batch_size=5, window=2, masking=masking, embedding=3)
    tapes = [Tape() for _ in case.columns]
    play(case, recorders=tapes)
    assert {len(values) for kind, _, values in tapes[0].partials if kind == Kind.PARTIAL} == {15}
    count = exposed(tapes, case.plan.active, (Kind.PARTIAL,))
    assert count > 1000 if seen else count == 0
    if masking in MASKINGS:
        words = np.concatenate([elements(tape, SUM_KINDS) for tape in tapes])
        counts = np.bincount(words.view(np.uint8), minlength=256)
        # chi-square with 255 degrees of freedom: above 420 once in 10^9
        assert np.sum((counts - counts.sum() / 256) ** 2) / (counts.sum() / 256) < 420


@pytest.mark.parametrize(
    ("fields", "states", "reason"),
    [
        ({"algorithm": "svrg"}, None, "a plan with embedding must have algorithm"),
        ({"active": (0, 1)}, None, "the head of 3 sums needs exactly one active party, got 2"),
        ({"update_passive": False}, None, "and update_passive True"),
        ({"problem": "softmax", "embedding": 0}, None, "softmax needs an embedding of 2 or more"),
        (
            {"problem": "softmax", "embedding": 2},
            None,
            "party 1: labels have at least 3 classes, but vfb2.embedding is 2",
        ),
        ({"problem": "softmax", "label_epsilon": 1.0}, None, "problem 'softmax' has none"),
        ({}, [PartyState(head=np.zeros(5))] * 3, "party 1: a head of 3 sums must have 4 finite weights"),
        (
            {},
            [PartyState(np.zeros(5))] * 3,
            "party .: its weights belong to another network",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused(fields: dict[str, Any], states: Any, reason: str) -> None:
    case = make_case(3, **{"active": (1,), "embedding": 3, **fields})
    with pytest.raises((PartiesError, ValueError), match=reason):
        play(case, states=states)
