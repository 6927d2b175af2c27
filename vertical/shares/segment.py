"""A party's run of one segment on secret shares: it joins the other parties, trains, evaluates, and opens the blocks.

The parties first publish their masked features. In each update they publish three masked vectors (`updates`). An
update starts from the weights W updates before (W: the plan's window), so W updates are under way at once, and the
result does not depend on timing. At the end of the run each party receives all shares of the weights of its columns.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from vertical.injection import Injection
from vertical.problem.objectives import LOGISTIC
from vertical.segment.masked_sums import Gathering
from vertical.segment.party import SegmentRun
from vertical.segment.plan import Holding, PartyState, Recorder, SegmentOutcome, SegmentPlan
from vertical.segment.shared import SegmentPhase, SegmentTally
from vertical.segment.sum_order import Agenda
from vertical.shares.checks import CheckedDeal, DealChecks, count_published
from vertical.shares.numbers import FEATURE, MAX_WEIGHT, SHIFT, WEIGHT, Stream, Words, decode, encode
from vertical.shares.order import DealOrder
from vertical.shares.package import Package
from vertical.shares.score_sums import FACTORS, MAX_SPREAD, add_waves, mask_labels, measure, multiply_shares, spread
from vertical.shares.updates import SharedWeights, Update
from vertical.transport.endpoint import Endpoint
from vertical.transport.frames import FinalError, Frame, Kind, PartyError, protocol_error

_NAMES: dict[int, str] = {
    Kind.MASKED_WEIGHTS: "masked weights",
    Kind.MASKED_SCORES: "masked scores",
    Kind.MASKED_SLOPES: "masked slopes",
    Kind.MASKED_FACTORS: "masked factors",
    Kind.WAVE_SUMS: "wave sums",
    Kind.BLOCK: "block",
}
_WRONG_DEAL = "the server did not follow the protocol, or a party sent wrong sums"
Fetch = Callable[[], Awaitable[bytes]]
# maximum bytes of a frame of masked features
_PIECE = 2**22


class SharedSums:
    """The published sums of a segment: every party adds up the frames of all parties.

    Args:
        me: The party's index.
        plan: The segment's plan.
        agenda: The segment's updates.
        broadcast: A function that sends a frame to every other party.
        send: A function that sends a frame to one party.
    """

    def __init__(
        self,
        me: int,
        plan: SegmentPlan,
        agenda: Agenda,
        broadcast: Callable[[Frame], None],
        send: Callable[[int, Frame], None],
    ) -> None:
        self._me, self._plan, self._broadcast, self._send = me, plan, broadcast, send
        self.batches = [len(rows) for rows in agenda.batches(0)]
        order = DealOrder.of(plan)
        deals, evaluated, weights = order.plan, order.evaluated, sum(plan.columns)
        self.evaluated = 0 if evaluated is None else evaluated.stop - evaluated.start
        evaluation = [self.evaluated] * plan.evaluate
        lengths: dict[int, list[int]] = {
            Kind.MASKED_WEIGHTS: [
                *(weights + count_published(deals, rows) for rows in self.batches),
                *[weights] * len(evaluation),
            ],
            Kind.MASKED_SCORES: [*(rows + 1 for rows in self.batches), *evaluation],
            Kind.MASKED_SLOPES: self.batches,
        }
        if plan.problem == LOGISTIC:
            lengths[Kind.MASKED_FACTORS] = [2 * FACTORS]
        if me == plan.active[0]:
            lengths[Kind.WAVE_SUMS] = [4 if plan.problem == LOGISTIC else 3]
        if plan.last:
            lengths[Kind.BLOCK] = [plan.columns[me]]
        peers = set(range(plan.parties)) - {me}
        self._gatherings = {
            kind: Gathering(_NAMES[kind], peers, plan.window + 1, numbers.__getitem__, own=True)
            for kind, numbers in lengths.items()
        }
        count = plan.rows + plan.test_rows
        # the masked features of the other parties, and the bytes that have arrived
        self.features = {peer: np.zeros((count, plan.columns[peer]), np.uint64) for peer in peers}
        self._arrived = dict.fromkeys(peers, 0)
        self.labels: Words | None = None

    def publish(self, kind: int, position: int, words: Words) -> None:
        """Send this party's share of a sum to all other parties, and add it to the own sum."""
        self._broadcast(Frame(kind, self._me, position, words.tobytes()))
        self._gatherings[kind].add_own(position, words)

    def give(self, kind: int, to: int, words: Words) -> None:
        """Send this party's share of a sum to the single party that receives the sum, which may be this party."""
        if to == self._me:
            self._gatherings[kind].add_own(0, words)
        else:
            self._send(to, Frame(kind, self._me, 0, words.tobytes()))

    def publish_features(self, words: Words) -> None:
        """Send this party's masked features to all other parties."""
        body = words.tobytes()
        for number, start in enumerate(range(0, len(body), _PIECE)):
            self._broadcast(Frame(Kind.MASKED_FEATURES, self._me, number, body[start : start + _PIECE]))

    def publish_labels(self, words: Words) -> None:
        """Send this party's masked labels of the evaluated rows to all other parties."""
        self._broadcast(Frame(Kind.MASKED_LABELS, self._me, 0, words.tobytes()))

    def receive(self, peer: int, frame: Frame) -> bool:
        """Add a peer's frame, and return whether it may have completed a sum.

        Raises:
            PartyError: The segment's plan does not contain this frame.
        """
        if frame.active != peer:
            raise protocol_error(peer, f"it sent a frame of party {frame.active}")
        if frame.kind == Kind.MASKED_FEATURES:
            self._store_features(peer, frame)
            return False
        if frame.kind == Kind.MASKED_LABELS:
            if peer != self._plan.active[0] or self.labels is not None or len(frame.body) != 8 * self.evaluated:
                raise protocol_error(peer, "it sent masked labels that the segment does not contain")
            self.labels = np.frombuffer(frame.body, dtype=np.uint64)
            return False
        if (gathering := self._gatherings.get(frame.kind)) is None:
            raise protocol_error(peer, f"it sent a frame of kind {frame.kind}, which this party does not receive")
        return gathering.add(peer, frame.update, frame.body)

    def _store_features(self, peer: int, frame: Frame) -> None:
        whole, start = self.features[peer].ravel().view(np.uint8), self._arrived[peer]
        stop = start + len(frame.body)
        if frame.update * _PIECE != start or stop > len(whole) or (len(frame.body) != _PIECE and stop != len(whole)):
            raise protocol_error(peer, f"its piece {frame.update} of masked features is not the next piece")
        whole[start:stop] = np.frombuffer(frame.body, np.uint8)
        self._arrived[peer] = stop

    def check_features(self) -> None:
        """Raise PartyError if the masked features of a peer are incomplete."""
        for peer, features in self.features.items():
            if self._arrived[peer] != features.nbytes:
                raise protocol_error(peer, "its masked features are incomplete")

    def take(self, kind: int) -> tuple[int, Words] | None:
        """Return the position and the total of the next sum of a kind; None while it is incomplete."""
        gathering = self._gatherings[kind]
        return gathering.take() if gathering.ready else None


@dataclass
class SharesContext:
    """A party's state during a segment on shares.

    Attributes:
        plan: The segment's plan.
        weights: The party's shares of all weights.
        package: The party's random numbers.
        mask: The (n, d) mask of the party's features.
        sums: The published sums.
        done: A function that a phase calls when it has ended at this party.
        labels: The labels 0 and 1 of the evaluated rows at the reporter. None at other parties, and in a regression.
    """

    me: int
    plan: SegmentPlan
    agenda: Agenda
    weights: SharedWeights
    package: Package
    mask: Words
    sums: SharedSums
    done: Callable[[], None]
    labels: Words | None
    tally: SegmentTally = field(default_factory=SegmentTally)
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def active_index(self) -> int:
        return 0 if self.me == self.plan.active[0] else -1


class SharedUpdates(SegmentPhase):
    """The updates of a segment, with checks of the dealer's numbers (`checks`).

    A frame of masked weights also has the numbers that the check publishes, a frame of masked scores the party's number
    of the check's sum.
    """

    def __init__(self, context: SharesContext) -> None:
        self._context, self._batches = context, list(context.agenda.batches(0))
        self._under_way: dict[int, tuple[Update, CheckedDeal]] = {}
        masked = context.sums.features | {context.me: context.weights.features - context.mask}
        ordered = [masked[party] for party in range(context.plan.parties)]
        self._checks = DealChecks(context.me, context.weights.plan, context.mask, ordered)

    def begin(self) -> None:
        for number in range(min(self._context.plan.window, len(self._batches))):
            self._launch(number)
        self.process_sums()

    def _launch(self, number: int) -> None:
        context, rows = self._context, self._batches[number]
        checked = self._checks.choose(rows, context.package.update(len(rows)))
        update = Update(rows, checked.deal)
        self._under_way[number] = update, checked
        words = np.concatenate([context.weights.mask_weights(update), checked.published])
        context.sums.publish(Kind.MASKED_WEIGHTS, number, words)

    def process_sums(self) -> None:
        context, sums, weights = self._context, self._context.sums, self._context.weights
        while self._under_way:
            busy = False
            if (taken := sums.take(Kind.MASKED_WEIGHTS)) is not None:
                number, opened = taken
                update, checked = self._under_way[number]
                masked, published = np.split(opened, [len(weights.weights)])
                words = [weights.mask_scores(update, masked), checked.compare(published)]
                sums.publish(Kind.MASKED_SCORES, number, np.concatenate(words))
                busy = True
            if (taken := sums.take(Kind.MASKED_SCORES)) is not None:
                number, opened = taken
                if opened[-1]:
                    raise FinalError(context.me, f"the dealer's numbers of update {number} are wrong: {_WRONG_DEAL}")
                slopes = weights.mask_slopes(self._under_way[number][0], opened[:-1])
                sums.publish(Kind.MASKED_SLOPES, number, slopes)
                busy = True
            if (taken := sums.take(Kind.MASKED_SLOPES)) is not None:
                number, opened = taken
                weights.apply(self._under_way.pop(number)[0], opened)
                context.tally.count(min(number, context.plan.window - 1), min(number, context.plan.window - 1))
                if number + context.plan.window < len(self._batches):
                    self._launch(number + context.plan.window)
                busy = True
            if not self._under_way:
                context.done()
            if not busy:
                return


class SharedEvaluation(SegmentPhase):
    """The evaluation: the reporter learns sums from which it computes the metrics (`score_sums`)."""

    def __init__(self, context: SharesContext, number: int) -> None:
        self._context, self._number = context, number
        rows = DealOrder.of(context.plan).evaluated
        assert rows is not None
        self._dealt = context.package.evaluation(rows.stop - rows.start)
        self._update = Update(np.arange(rows.start, rows.stop), self._dealt.as_update())
        self._sums: Words | None = None
        self._reports = False

    def begin(self) -> None:
        context = self._context
        context.sums.publish(Kind.MASKED_WEIGHTS, self._number, context.weights.mask_weights(self._update))
        self.process_sums()

    def process_sums(self) -> None:
        context, sums = self._context, self._context.sums
        if (taken := sums.take(Kind.MASKED_WEIGHTS)) is not None:
            sums.publish(Kind.MASKED_SCORES, self._number, context.weights.mask_scores(self._update, taken[1]))
        if (taken := sums.take(Kind.MASKED_SCORES)) is not None:
            classes = context.plan.problem == LOGISTIC
            labels = (sums.labels if context.labels is None else context.labels) if classes else None
            results = add_waves(context.plan.problem, taken[1], self._dealt, labels)
            if classes:
                self._sums = results.sums
                sums.publish(Kind.MASKED_FACTORS, 0, results.factors + self._dealt.factor_masks)
            else:
                self._give(results.sums)
        if self._sums is not None and (taken := sums.take(Kind.MASKED_FACTORS)) is not None:
            products = multiply_shares(taken[1], self._dealt, leads=context.me == 0)
            self._give(np.concatenate([self._sums, products]))
        if self._reports and (taken := sums.take(Kind.WAVE_SUMS)) is not None:
            self._reports = False
            self._report(taken[1])
            context.done()

    def _give(self, words: Words) -> None:
        context = self._context
        context.sums.give(Kind.WAVE_SUMS, context.plan.active[0], words)
        self._reports = context.active_index == 0
        if not self._reports:
            context.done()

    def _report(self, opened: Words) -> None:
        context, rows = self._context, len(self._update.rows)
        positives = 0 if context.labels is None else int(context.labels.sum())
        if (width := spread(opened, rows)) > MAX_SPREAD:
            words = f"the scores have a root mean square of {width:.1f}, above {MAX_SPREAD:g}, the range of shares"
            raise FinalError(context.me, f'{words}: lower learning-rate, raise vfb2.weight, or set scale="bins"')
        context.metrics |= measure(context.plan.problem, opened, rows, positives)


class BlockOpening(SegmentPhase):
    """The end of a run: each party receives all shares of the weights of its columns."""

    def __init__(self, context: SharesContext) -> None:
        self._context = context
        self.block: NDArray[np.float64] | None = None

    def begin(self) -> None:
        context = self._context
        for party, columns in enumerate(context.weights.plan.slices):
            context.sums.give(Kind.BLOCK, party, context.weights.weights[columns].copy())
        self.process_sums()

    def process_sums(self) -> None:
        if (taken := self._context.sums.take(Kind.BLOCK)) is not None:
            self.block = decode(taken[1], WEIGHT + SHIFT)
            self._context.done()


async def run_shared_segment(
    me: int,
    plan: SegmentPlan,
    holding: Holding,
    start: PartyState,
    endpoint: Endpoint,
    fetch: Fetch,
    *,
    injection: Injection | None = None,
    recorder: Recorder | None = None,
) -> SegmentOutcome:
    """Take part in one segment on secret shares.

    Args:
        me: The index of this party.
        plan: The segment's plan.
        holding: The party's data.
        start: The party's state after its last segment.
        endpoint: The party's access to the other parties.
        fetch: A function that returns the party's random numbers, from the dealer. It is called when all have joined.
        injection: Artificial delays of an experiment.
        recorder: An observer for tests.

    Raises:
        ValueError: The plan is impossible, or is not for this party.
        PartyError: The segment failed. All parties get an error with the same culprit.
    """
    plan.check()
    if not 0 <= me < plan.parties or plan.parties < 2:
        raise ValueError(f"party {me} is not in a plan for {plan.parties} parties")
    run = SharesRun(me, plan, holding, start, endpoint, None, injection or Injection(), 1, 0)
    run.fetch = fetch
    return await run.run(recorder, events=False)


class SharesRun(SegmentRun):
    """A segment on shares, with the parties' meeting of `SegmentRun`.

    Attributes:
        fetch: A function that returns the party's random numbers, from the dealer.
    """

    fetch: Fetch
    _block: NDArray[np.float64] | None = None

    async def _set_up(self, recorder: Recorder | None, events: bool) -> Any:
        plan, router = self.plan, self._router
        hellos = await self._join()
        sums = SharedSums(self.me, plan, self._agenda, router.broadcast, router.send)
        router.open(sums, recorder)  # type: ignore[arg-type]
        await self._compare(hellos)
        received = await self.fetch()
        try:
            weights, package, labels = self._prepare_shares(sums, received)
        except ValueError as error:
            raise PartyError(self.me, str(error)) from error
        mask = Stream(package.features_seed).draw(*weights.features.shape)
        sums.publish_features(weights.features - mask)
        if labels is not None:
            sums.publish_labels(mask_labels(labels, package.labels_seed))
        return SharesContext(self.me, plan, self._agenda, weights, package, mask, sums, router.done, labels)

    def _prepare_shares(self, sums: SharedSums, received: bytes) -> tuple[SharedWeights, Package, Words | None]:
        """Return the party's shares, its random numbers and, at the reporter, the labels of the evaluated rows.

        Raises:
            ValueError: The features, the labels or the dealer's package do not fit.
        """
        plan, holding, me = self.plan, self.holding, self.me
        order = DealOrder.of(plan)
        deals = order.plan
        package = Package.from_bytes(received, deals, last=me == plan.parties - 1, corrections=order.corrections)
        features = encode_features(holding)
        if features.shape[1] != plan.columns[me]:
            raise ValueError(f"it has {features.shape[1]} columns, but the segment has {plan.columns[me]}")
        share = np.zeros(sum(plan.columns), np.uint64) if self.state.share is None else self.state.share
        trained, evaluated = _labels(plan, holding) if me == plan.active[0] else (None, None)
        weights = SharedWeights(me, deals, features, sums.features, share, plan.step, plan.weight, trained)
        return weights, package, evaluated

    async def _train(self, context: Any) -> None:
        context.sums.check_features()
        if self._agenda.counts[0] * self.plan.epochs:
            await self._router.through(SharedUpdates(context))

    async def _evaluate(self, context: Any) -> None:
        if self.plan.evaluate:
            await self._router.through(SharedEvaluation(context, len(context.sums.batches)))
        if self.plan.last:
            opening = BlockOpening(context)
            await self._router.through(opening)
            assert opening.block is not None
            if np.abs(opening.block).max(initial=0.0) >= MAX_WEIGHT / 2:
                raise FinalError(self.me, "its weights exceed the range of shares: lower learning-rate")
            self._block = opening.block

    def _outcome(self, context: Any, counters: dict[str, float]) -> SegmentOutcome:
        block = np.zeros(self.plan.columns[self.me]) if self._block is None else self._block
        return SegmentOutcome(block, metrics=context.metrics, counters=counters, share=context.weights.weights)


def encode_features(holding: Holding) -> Words:
    """Return the integers of a party's features, of the training rows and then of the test rows.

    Raises:
        ValueError: A feature is not finite or too large.
    """
    parts = [holding.features, *([] if holding.test_features is None else [holding.test_features])]
    dense = [part.toarray() if sparse.issparse(part) else np.asarray(part) for part in parts]
    return encode(np.vstack(dense), FEATURE)


def _labels(plan: SegmentPlan, holding: Holding) -> tuple[NDArray[np.float64], Words | None]:
    """Return the labels of all rows, and for classification the labels 0 and 1 of the evaluated rows."""
    parts = [holding.labels, *([] if holding.test_features is None else [holding.test_labels])]
    if any(part is None for part in parts):
        raise ValueError("the active party needs labels of all rows, but it has none")
    labels = np.concatenate([np.asarray(part) for part in parts])
    if plan.problem != LOGISTIC:
        return labels, None
    labels, rows = (labels + 1.0) / 2.0, DealOrder.of(plan).evaluated
    return labels, None if rows is None else labels[rows].astype(np.uint64)
