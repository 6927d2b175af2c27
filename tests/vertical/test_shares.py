"""Tests of training on secret shares, with real parties over TLS on this machine, against NumPy in float64."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from apps.config import parse_run_config
from apps.run_config.settings import ConfigError
from benchmarks.attacks.decoding import Ear
from benchmarks.attacks.shares import record
from benchmarks.parties import PartiesError, run_parties
from tests.clients.party_problems import make_case
from tests.refusals import refuses
from vertical.policy import Policy, PolicyError
from vertical.problem.objectives import Array, make_objective
from vertical.problem.schedule import Schedule
from vertical.segment.plan import SHARED, Holding, SegmentOutcome, SegmentPlan
from vertical.shares.checks import DealChecks
from vertical.shares.deals import DealPlan, Offer, count_surplus, deal, draw_all
from vertical.shares.numbers import FEATURE, SHIFT, WEIGHT, Stream, add, decode, encode
from vertical.shares.order import DealOrder
from vertical.shares.package import Package
from vertical.shares.score_sums import (
    FACTORS,
    ScoreDeal,
    _waves,
    add_waves,
    measure,
    multiply,
    multiply_shares,
    wave_bits,
)
from vertical.shares.updates import SharedWeights, Update
from vertical.shares.waves import approximate
from vertical.transport.frames import Kind

ROWS, TESTS, COLUMNS = 200, 400, 9


def draw_rows(problem: str, seed: int = 0) -> tuple[Array, Array]:
    """Return features and labels of training rows and then of test rows."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(ROWS + TESTS, COLUMNS))
    scores = features @ np.linspace(-1.0, 1.0, COLUMNS)
    if problem == "logistic":
        return features, np.where(rng.random(len(scores)) < expit(scores), 1.0, -1.0)
    return features, scores + rng.normal(size=len(scores))


def plan_of(problem: str, parties: int, **fields: Any) -> SegmentPlan:
    counts = tuple(len(own) for own in np.array_split(np.arange(COLUMNS), parties))
    plan = replace(make_case(3, (0,)).plan, parties=parties, active=(0,), algorithm=SHARED, problem=problem)
    plan = replace(plan, weight=0.01, step=0.1, batch_size=32, rows=ROWS, test_rows=TESTS, epochs=3, window=1)
    return replace(plan, columns=counts, last=True, evaluate=True, **fields)


def train(plan: SegmentPlan, features: Array, labels: Array, **options: Any) -> list[SegmentOutcome]:
    """Run one segment with all parties."""
    holdings, start = [], 0
    for party, count in enumerate(plan.columns):
        own = np.ascontiguousarray(features[:, start : start + count])
        start += count
        halves = (labels[:ROWS], labels[ROWS:]) if party in plan.active else (None, None)
        holdings.append(Holding(own[:ROWS], own[ROWS:], *halves))
    return run_parties(holdings, plan, processes=False, **options)[0]


def train_centrally(plan: SegmentPlan, features: Array, labels: Array) -> Array:
    """Return the (d,) weights of SGD on all columns, with the shares' approximated slopes and delay."""
    weights = [np.zeros(features.shape[1])]
    schedule = Schedule(plan.rows, 1, plan.batch_size, plan.seed)
    for epoch in range(plan.epochs):
        for rows in schedule.batches(plan.first_epoch + epoch, 0):
            old = weights[max(len(weights) - plan.window, 0)]
            z, y = features[rows] @ old, labels[rows]
            if plan.problem == "ridge":
                slopes = 2.0 * (z - y)
            elif plan.problem == "robust":
                slopes = approximate("robust", z - y)
            else:
                slopes = approximate("logistic", z) - y / 2.0
            weights.append(weights[-1] - plan.step * (features[rows].T @ slopes / len(rows) + plan.weight * old))
    return weights[-1]


@pytest.mark.parametrize(("parties", "window", "labelled"), [(2, 1, 0), (3, 3, 2)])
@pytest.mark.parametrize("problem", ["logistic", "ridge", "robust"])
def test_shares_train_as_one_table(problem: str, parties: int, window: int, labelled: int) -> None:
    features, labels = draw_rows(problem)
    plan = replace(plan_of(problem, parties, window=window), active=(labelled,))
    outcomes = train(plan, features, labels)
    weights = np.concatenate([outcome.weights for outcome in outcomes])
    np.testing.assert_allclose(weights, train_centrally(plan, features, labels), atol=5e-4)
    z, y = features[ROWS:] @ weights, labels[ROWS:]
    metrics = outcomes[labelled].metrics
    assert metrics["loss"] == pytest.approx(make_objective(problem, 0.0).losses(z, y).mean(), abs=1e-3)
    if problem == "logistic":
        assert metrics["auc"] == pytest.approx(roc_auc_score(y, z), abs=2e-3)
    else:
        assert metrics["rmse"] == pytest.approx(np.sqrt(np.square(z - y).mean()), abs=1e-3)
    assert [bool(outcome.metrics) for outcome in outcomes] == [party == labelled for party in range(parties)]


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 5), st.lists(st.floats(-1e5, 1e5), min_size=1, max_size=6), st.integers(0, 2**32))
def test_weights_are_rounded_to_one_unit(parties: int, values: list[float], seed: int) -> None:
    """The truncation of shares is right for each number of parties and each mask."""
    draw, count = np.random.default_rng(seed).bytes, len(values)
    plan = DealPlan("logistic", (count, *[0] * (parties - 1)), decays=True)
    masks = [Stream(draw(32)).draw(1, columns) for columns in plan.columns]
    seeds, rows = [draw(32) for _ in range(parties)], np.array([0])
    (corrections,) = deal(plan, masks, [rows], [Stream(own) for own in seeds])
    shares = [Stream(draw(32)).draw(count) for _ in range(parties - 1)]
    shares.append(encode(np.array(values), WEIGHT + SHIFT) - add(shares))
    updates, parts = [], []
    for party in range(parties):
        package = Package(plan, Stream(seeds[party]), b"", b"", corrections if party == parties - 1 else None)
        empty = {peer: np.zeros((1, plan.columns[peer]), np.uint64) for peer in range(parties) if peer != party}
        own = np.zeros((1, plan.columns[party]), np.uint64)
        parts.append(SharedWeights(party, plan, own, empty, shares[party], 0.1, 0.1))
        checks = DealChecks(party, plan, masks[party], masks)
        updates.append(Update(rows, checks.choose(rows, package.update(1)).deal))
    opened = add([part.mask_weights(update) for part, update in zip(parts, updates, strict=True)])
    for part, update in zip(parts, updates, strict=True):
        part.mask_scores(update, opened)
    rounded = decode(add([update.rounded for update in updates]), WEIGHT)
    assert np.abs(rounded - values).max() <= 2.0**-WEIGHT


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("me", [0, 1])
def test_a_view_is_uniform_whatever_the_other_party_has(me: int, changed: bool) -> None:
    """A party's view has the same distribution with other data of its peer.

    All rows are equal, so each row is a draw of the view: its words in the peer's frames and in the dealer's package.
    Each word, and each sum and difference of two words, is uniform.
    """
    features, label = [np.full((2000, 2), 0.5), np.full((2000, 2), -2.0)], 1.0
    if changed:
        features[1 - me] *= -1.5
        label = -1.0 if me else label
    recording = record(features, np.full(2000, label), epochs=2, batch_size=0)
    sent, back = recording.sent[1 - me], [np.argsort(rows) for rows in recording.order.batches()]
    view = [
        column for table in (recording.mask(me), recording.masked(1 - me)) for column in np.ascontiguousarray(table.T)
    ]
    for number, dealt in enumerate(recording.deals(me)):
        slopes = dealt.slopes.reshape(2, -1, 2000)
        words = [dealt.products, dealt.scores_mask, dealt.slopes_mask, slopes[0, 0], slopes[1, 0], slopes[1, -1]]
        words += [sent[Kind.MASKED_WEIGHTS, number][-2000:], sent[Kind.MASKED_SCORES, number][:-1]]
        words += [sent[Kind.MASKED_SLOPES, number], recording.opened(Kind.MASKED_SLOPES, number) - dealt.slopes_mask]
        words.append(recording.opened(Kind.MASKED_SCORES, number)[:-1] - dealt.scores_mask)
        view += [own[back[number]] for own in words]
    assert len(np.unique(np.concatenate(view))) == 2000 * len(view)
    pairs = [word for one, other in combinations(view, 2) for word in (one + other, one - other)]
    for words in (*view, *pairs):
        counts = np.bincount(words.view(np.uint8), minlength=256)
        # chi-squared with 255 degrees of freedom: above 400 once in ten million times
        assert np.square(counts - counts.mean()).sum() / counts.mean() < 400


def test_the_party_with_labels_receives_four_sums_only() -> None:
    """Sums of waves over few rows would reveal each score."""
    features, labels = draw_rows("logistic")
    ears = [Ear(), Ear()]
    train(plan_of("logistic", 2), features, labels, recorders=ears)
    sizes = [[len(frame.body) for frame in ear.frames if frame.kind == Kind.WAVE_SUMS] for ear in ears]
    assert sizes == [[32], []]
    for ear in ears:
        (words,) = [np.frombuffer(frame.body, np.uint8) for frame in ear.frames if frame.kind == Kind.MASKED_FACTORS]
        counts = np.bincount(words, minlength=256)
        assert np.square(counts - counts.mean()).sum() / counts.mean() < 400


@pytest.mark.parametrize("size", [0.5, 1.5, 4.0, 8.0])
def test_metrics_of_shared_scores(size: float) -> None:
    rng = np.random.default_rng(0)
    scores, rows = size * rng.normal(size=2000), 2000
    labels = (rng.random(rows) < expit(scores)).astype(np.uint64)
    masks, none = rng.integers(2**64, size=rows, dtype=np.uint64), np.zeros(0, np.uint64)
    factors = rng.integers(2**64, size=2 * FACTORS, dtype=np.uint64)
    waves = encode(np.stack(_waves(masks)), wave_bits("logistic", rows)).ravel()
    products = multiply(*np.split(factors, 2))
    dealt = ScoreDeal(none, none, none, none, waves, np.zeros_like(waves), factors, products)
    results = add_waves("logistic", encode(scores, FEATURE + WEIGHT) + masks, dealt, labels)
    opened = np.concatenate([results.sums, multiply_shares(results.factors + factors, dealt, leads=True)])
    metrics, signs = measure("logistic", opened, rows, int(labels.sum())), 2.0 * labels - 1.0
    assert metrics["loss"] == pytest.approx(make_objective("logistic", 0.0).losses(scores, signs).mean(), abs=1e-3)
    assert metrics["auc"] == pytest.approx(roc_auc_score(labels, scores), abs=1.5e-3)


def test_a_mask_is_never_dealt_twice() -> None:
    plan = DealPlan("robust", (3, 2), decays=False)
    streams = [Stream(bytes([party]) * 32) for party in range(2)]
    first, second = (np.concatenate(draw_all(plan.parts(5), streams)[0]) for _ in range(2))
    assert not set(first.tolist()) & set(second.tolist())


@pytest.mark.parametrize(
    ("scale", "fields", "words"),
    [
        (60.0, {"step": 5.0}, "above 16, the range of shares: lower learning-rate"),
        (1e300, {}, "party [01]: numbers must be finite and within"),
    ],
)
def test_numbers_out_of_range_end_the_segment(scale: float, fields: dict[str, Any], words: str) -> None:
    features, labels = draw_rows("logistic")
    with pytest.raises(PartiesError, match=words):
        train(plan_of("logistic", 2, **fields), features * scale, labels)


def test_a_package_of_another_segment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = draw_rows("logistic")
    monkeypatch.setattr(DealOrder, "deal", lambda order: [bytes(96), bytes(104)])
    with pytest.raises(PartiesError, match="the dealer's package has 104 bytes, not the"):
        train(plan_of("logistic", 2), features, labels)


@pytest.mark.parametrize("field", ["truncated", "weights_top", "products", "slopes", "gradients", "features_seed"])
def test_wrong_numbers_of_the_dealer_end_the_segment(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of truncations, highest bits and products, the dealer falsifies one choice in each of 21 updates."""
    plan = plan_of("logistic", 2)
    honest = DealOrder.deal

    def lie(order: DealOrder) -> list[bytes]:
        first, last = map(bytearray, honest(order))
        words, start = np.frombuffer(last, np.uint64, offset=96), 0
        for rows in map(len, order.batches()):
            for name, (length, corrected) in zip(Offer._fields, order.plan.parts(rows), strict=True):
                count = rows + count_surplus(rows) if field == "slopes" else COLUMNS
                words[start : start + count * (name == field)] += np.uint64(1)
                start += length * corrected
        first[32] ^= field == "features_seed"
        return [bytes(first), bytes(last)]

    monkeypatch.setattr(DealOrder, "deal", lie)
    with pytest.raises(PartiesError, match="the dealer's numbers of update [0-9]+ are wrong"):
        train(plan, *draw_rows("logistic"))


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("vfb2.problem", "softmax", "one of logistic, ridge, robust"),
        ("vfb2.embedding", 4, "0, since networks need vfb2-sgd"),
        ("vfb2.penalty", "l1", "none, since shares cannot be compared with 0"),
        ("vfb2.label-epsilon", 1.0, "0, since no party sees labels or slopes"),
        ("vfb2.update-passive", False, "true, since all blocks are updated together"),
        ("vfb2.active-parties", 2, "1 or auto"),
        ("vfb2.assemble", True, "false, since vfb2.keep-shared opens no block"),
    ],
)
def test_settings_without_shares_are_refused(key: str, value: Any, allowed: str) -> None:
    config = {"dataset": "breast-cancer", "vfb2.keep-shared": True, key: value}
    with refuses(ConfigError, f"{key}: got {value!r} with strategy 'shared-sgd', allowed: {allowed}"):
        parse_run_config({**config, "strategy": "shared-sgd"})
    with refuses(ConfigError, "vfb2.keep-shared: got true with strategy 'vfb2-sgd'"):
        parse_run_config({"strategy": "vfb2-sgd", "dataset": "breast-cancer", "vfb2.keep-shared": True})


@pytest.mark.parametrize(("allowed", "masking"), [(("pairwise",), "shares"), (("shares",), "pairwise")])
def test_an_owner_chooses_between_masks_and_shares(allowed: tuple[str, ...], masking: str) -> None:
    with refuses(PolicyError, f"allowed-maskings: got a run with {masking}, allowed: {allowed[0]}"):
        Policy(allowed_maskings=allowed).check_run(2, label_epsilon=0.0, masking=masking, intersection=False)


def test_sums_over_few_test_rows_are_refused() -> None:
    Policy(fewest_rows=100).check_rows(100, 5)
    with refuses(PolicyError, "fewest-rows: got a run of 5 test rows, allowed: 100 or more"):
        Policy(fewest_rows=100).check_rows(100, 5, shared=True)
