"""Attacks on runs on secret shares (`vertical.shares`), by the frames of a real run and the packages of its dealer.

An attacker removes the masks that it knows from the published sums, and then uses these numbers like the numbers of a
run on masks. Every party knows its own masks. Together with the dealer, it knows all masks, and each attack succeeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from benchmarks.attacks.decoding import Ear
from benchmarks.attacks.leaks import BATCH, STEP, Equations
from benchmarks.attacks.watched import Array, Numbers, Ring, patients, updates
from benchmarks.parties import run_parties
from problems.randomness import stream
from vertical.problem.objectives import make_objective
from vertical.segment.plan import BARE, SHARED, Holding, SegmentPlan
from vertical.shares.checks import DealChecks
from vertical.shares.deals import Deal
from vertical.shares.numbers import FEATURE, SHIFT, SLOPE, WEIGHT, Stream, add, decode
from vertical.shares.order import DealOrder
from vertical.shares.package import Package
from vertical.transport.frames import Kind

COLUMNS = (20, 10)
_KINDS = [kind for kind in Kind if Kind.MASKED_FEATURES <= kind <= Kind.MASKED_FACTORS]
_PLAN = SegmentPlan(
    serial=1,
    segment=0,
    algorithm=SHARED,
    problem="logistic",
    weight=make_objective("logistic").weight,
    step=STEP,
    batch_size=BATCH,
    seed=0,
    first_epoch=0,
    epochs=1,
    parties=2,
    active=(0,),
    window=1,
    skew=0,
    masking=BARE,
    synchronous=False,
    update_passive=True,
    evaluate=False,
    label_epsilon=0.0,
    rows=1,
    test_rows=0,
    last=True,
)


@dataclass(frozen=True)
class Recording:
    """A segment of two parties on secret shares, of which party 0 has the labels.

    Attributes:
        plan: The segment's plan.
        packages: The bytes that the dealer sends to each party.
        sent: The words of each party's frames, by kind and update.
    """

    plan: SegmentPlan
    packages: Sequence[bytes]
    sent: Sequence[dict[tuple[int, int], Ring]]

    @property
    def order(self) -> DealOrder:
        """The order of the segment's random numbers."""
        return DealOrder.of(self.plan)

    def read(self, party: int) -> Package:
        """Return a party's package."""
        order = self.order
        last = party == self.plan.parties - 1
        return Package.from_bytes(self.packages[party], order.plan, last=last, corrections=order.corrections)

    def mask(self, party: int) -> Ring:
        """Return the mask of a party's features, from its package."""
        return Stream(self.read(party).features_seed).draw(self.plan.rows, self.plan.columns[party])

    def masked(self, party: int) -> Ring:
        """Return a party's published masked features."""
        return self.sent[party][Kind.MASKED_FEATURES, 0].reshape(self.plan.rows, -1)

    def deals(self, party: int) -> Iterator[Deal]:
        """Yield a party's numbers of each update, as it chooses them from its package and the masked features."""
        package, masked = self.read(party), [self.masked(owner) for owner in range(self.plan.parties)]
        checks = DealChecks(party, self.order.plan, self.mask(party), masked)
        for rows in self.order.batches():
            yield checks.choose(rows, package.update(len(rows))).deal

    def opened(self, kind: Kind, update: int) -> Ring:
        """Return a published sum, which both parties know."""
        return add([sent[kind, update] for sent in self.sent])

    def watch(self, known: Sequence[int]) -> Iterator[tuple[NDArray[np.int64], Array, Array]]:
        """Yield the rows of each update, and their scores and slopes, without the masks of some parties.

        Args:
            known: The parties whose packages the attacker knows.
        """
        deals = zip(*(self.deals(party) for party in known), strict=True)
        for number, (rows, dealt) in enumerate(zip(self.order.batches(), deals, strict=True)):
            scores = self.opened(Kind.MASKED_SCORES, number)[:-1] - add([own.scores_mask for own in dealt])
            slopes = self.opened(Kind.MASKED_SLOPES, number) - add([own.slopes_mask for own in dealt])
            z = decode(scores << np.uint64(SHIFT), FEATURE + WEIGHT + SHIFT)
            yield rows, z, decode(slopes, SLOPE) * len(rows) / self.plan.step

    def read_features(self, owner: int, known: Sequence[int]) -> Array:
        """Return a party's features without its mask, or the masked features if the mask is not known."""
        masked = self.masked(owner)
        return decode(masked + self.mask(owner) if owner in known else masked, FEATURE)


def record(features: Sequence[Array], labels: Array, *, epochs: int, batch_size: int = BATCH) -> Recording:
    """Train a segment, and record all frames.

    Args:
        features: The (n, d_p) features of each party.
        labels: The (n,) labels of party 0.
        epochs: The number of epochs.
        batch_size: The rows of an update. 0: all rows.
    """
    columns = tuple(own.shape[1] for own in features)
    plan = replace(_PLAN, rows=len(labels), columns=columns, epochs=epochs, batch_size=batch_size)
    packages = DealOrder.of(plan).deal(stream(0, "dealer").bytes)
    holdings = [Holding(own, labels=labels if party == 0 else None) for party, own in enumerate(features)]
    ears = [Ear(), Ear()]
    run_parties(holdings, plan, processes=False, recorders=ears, packages=[packages])
    sent: list[dict[tuple[int, int], Ring]] = [{}, {}]
    for frame in (frame for ear in ears for frame in ear.frames if frame.kind in _KINDS):
        sent[frame.active][frame.kind, frame.update] = np.frombuffer(frame.body, np.uint64)
    return Recording(plan, packages, sent)


def shares(rows: int = 24, epochs: int = 60) -> Numbers:
    """Attack labels, scores, features and inner products on shares: as one party, and with the dealer.

    Args:
        rows: The number of rows for inner products, see `benchmarks.attacks.leaks.gram`.
        epochs: The number of epochs for inner products.

    Returns:
        The results of the more successful party.
    """
    features, labels = patients(COLUMNS)
    all_rows, few_rows = record(features, labels, epochs=3, batch_size=32), patients(COLUMNS, rows)
    long = record(*few_rows, epochs=epochs)
    found: Numbers = {"largest inner product": max(float(np.abs(own @ own.T).max()) for own in few_rows[0])}
    for words, both in (("one party", False), ("with the dealer", True)):
        known = [(0, 1) if both else (me,) for me in (0, 1)]
        guesses = [_guess_scores(all_rows, features, labels, parties) for parties in known]
        found[f"labels right, {words}"] = guesses[1][0]  # party 0 has the labels
        found[f"correlation of scores, {words}"] = max((guess[1] for guess in guesses), key=abs)
        read = [_correlate(all_rows.read_features(1 - me, known[me]), features[1 - me]) for me in (0, 1)]
        found[f"correlation of features, {words}"] = max(read, key=abs)
        errors = [_guess_products(long, few_rows[0], me, known[me]) for me in (0, 1)]
        found[f"error of inner products, {words}"] = min(errors)
    return found


def _guess_scores(
    recording: Recording, features: Sequence[Array], labels: Array, known: Sequence[int]
) -> tuple[float, float]:
    """Return the share of right labels, and the correlation with the scores of training without shares."""
    plan, (z, theta, right) = recording.plan, np.empty((3, len(labels)))
    clear = updates(
        features, labels, make_objective("logistic"), step=STEP, batch_size=plan.batch_size, epochs=plan.epochs
    )
    for (rows, scores, slopes), seen in zip(recording.watch(known), clear, strict=True):
        z[rows], theta[rows], right[rows] = scores, slopes, seen.partials.sum(axis=0)
    # theta = sigmoid(z) - label
    return float(np.mean((expit(z) - theta > 0.5) == (labels > 0))), _correlate(z, right)


def _guess_products(recording: Recording, features: Sequence[Array], me: int, known: Sequence[int]) -> float:
    """Return the largest error of the inner products of the other party's rows."""
    equations = Equations(len(features[0]), make_objective("logistic"), STEP)
    for rows, scores, slopes in recording.watch(known):
        equations.add(rows, scores, slopes)
    products = equations.solve()[0] - features[me] @ features[me].T
    return float(np.abs(products - features[1 - me] @ features[1 - me].T).max())


def _correlate(one: Array, other: Array) -> float:
    return float(np.corrcoef(one.ravel(), other.ravel())[0, 1])
