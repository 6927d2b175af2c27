"""The phases of a segment on shares: the updates, the evaluation, the opening of the blocks, the scores of new rows."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vertical.problem.objectives import LOGISTIC, Array
from vertical.segment.plan import SegmentPlan
from vertical.segment.shared import SegmentPhase, SegmentTally
from vertical.shares.checks import CheckedDeal, DealChecks
from vertical.shares.numbers import FEATURE, SHIFT, WEIGHT, Words, decode
from vertical.shares.order import DealOrder
from vertical.shares.package import Package
from vertical.shares.score_sums import MAX_SPREAD, add_waves, measure, multiply_shares, spread
from vertical.shares.sums import SharedSums
from vertical.shares.updates import SharedWeights, Update
from vertical.transport.frames import FinalError, Kind

_WRONG_DEAL = "the server did not follow the protocol, or a party sent wrong sums"


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
        metrics: The metrics, at the reporter.
        scores: The (n,) scores of new rows, at a recipient of scores.
    """

    me: int
    plan: SegmentPlan
    weights: SharedWeights
    package: Package
    mask: Words
    sums: SharedSums
    done: Callable[[], None]
    labels: Words | None
    tally: SegmentTally = field(default_factory=SegmentTally)
    metrics: dict[str, float] = field(default_factory=dict)
    scores: Array | None = None

    @property
    def active_index(self) -> int:
        return self.plan.active.index(self.me) if self.me in self.plan.active else -1

    @cached_property
    def checks(self) -> DealChecks:
        """The checks of the segment's deals."""
        masked = self.sums.features | {self.me: self.weights.features - self.mask}
        ordered = [masked[party] for party in range(self.plan.parties)]
        return DealChecks(self.me, self.weights.plan, self.mask, ordered)

    def launch(self, number: int) -> tuple[Update, CheckedDeal]:
        """Choose an update's numbers, publish the masked weights and the numbers of the check, and return both.

        Args:
            number: The number of the update in the segment.
        """
        rows = self.sums.batches[number]
        checked = self.checks.choose(rows, self.package.update(len(rows)))
        update = Update(rows, checked.deal)
        words = np.concatenate([self.weights.mask_weights(update), checked.published])
        self.sums.publish(Kind.MASKED_WEIGHTS, number, words)
        return update, checked

    def check_sum(self, number: int, opened: Words) -> None:
        """Raise FinalError if the dealer's numbers of an update are wrong.

        Args:
            number: The number of the update.
            opened: The sum of the parties' numbers, which is 0 if the dealer is honest (`checks`).
        """
        if opened.any():
            raise FinalError(self.me, f"the dealer's numbers of update {number} are wrong: {_WRONG_DEAL}")


class SharedUpdates(SegmentPhase):
    """The updates of a segment, with checks of the dealer's numbers (`checks`).

    A frame of masked weights also has the numbers that the check publishes, a frame of masked scores the party's number
    of the check's sum.
    """

    def __init__(self, context: SharesContext) -> None:
        self._context, self._count = context, len(context.sums.batches) - context.plan.rounds
        self._under_way: dict[int, tuple[Update, CheckedDeal]] = {}

    def begin(self) -> None:
        for number in range(min(self._context.plan.window, self._count)):
            self._launch(number)
        self.process_sums()

    def _launch(self, number: int) -> None:
        self._under_way[number] = self._context.launch(number)

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
                context.check_sum(number, opened[-1:])
                slopes = weights.mask_slopes(self._under_way[number][0], opened[:-1])
                sums.publish(Kind.MASKED_SLOPES, number, slopes)
                busy = True
            if (taken := sums.take(Kind.MASKED_SLOPES)) is not None:
                number, opened = taken
                weights.apply(self._under_way.pop(number)[0], opened)
                context.tally.count(min(number, context.plan.window - 1), min(number, context.plan.window - 1))
                if number + context.plan.window < self._count:
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


class CheckedExchange:
    """An exchange of masked weights that trains nothing, with a check of the dealer's numbers.

    Args:
        context: The party's state.
        number: The number of the exchange in the segment.
        use: A function that uses the update and the masked weights.
    """

    def __init__(self, context: SharesContext, number: int, use: Callable[[Update, Words], None]) -> None:
        self._context, self._number, self._use = context, number, use
        self._update, self._checked = context.launch(number)

    def is_checked(self) -> bool:
        """Process complete sums, and return whether the parties have just checked the dealer's numbers.

        Raises:
            FinalError: The dealer's numbers are wrong.
        """
        context, sums = self._context, self._context.sums
        if (taken := sums.take(Kind.MASKED_WEIGHTS)) is not None:
            masked, published = np.split(taken[1], [len(context.weights.weights)])
            self._use(self._update, masked)
            sums.publish(Kind.MASKED_SCORES, self._number, self._checked.compare(published))
        if (taken := sums.take(Kind.MASKED_SCORES)) is None:
            return False
        context.check_sum(*taken)
        return True


class WeightRounding(SegmentPhase):
    """The end of a run whose weights stay shared: each party computes its share of the rounded weights.

    Only rounded weights are exact modulo 2^64, so they give scores of any size.
    """

    def __init__(self, context: SharesContext) -> None:
        self._context = context
        self.rounded: Words | None = None
        self._exchange: CheckedExchange | None = None

    def begin(self) -> None:
        self._exchange = CheckedExchange(self._context, len(self._context.sums.batches) - 1, self._round)
        self.process_sums()

    def _round(self, update: Update, masked: Words) -> None:
        self._context.weights.share_scores(update, masked)
        self.rounded = update.rounded

    def process_sums(self) -> None:
        if self._exchange is not None and self._exchange.is_checked():
            self._context.done()


class SharedScoring(SegmentPhase):
    """The scores of new rows, in pieces: each recipient receives all shares of a piece's scores."""

    def __init__(self, context: SharesContext) -> None:
        self._context = context
        self._next = 0
        self._shares = np.zeros(0, np.uint64)
        self._exchange: CheckedExchange | None = None
        if context.active_index >= 0:
            context.scores = np.zeros(context.plan.rows)

    def begin(self) -> None:
        self._exchange = CheckedExchange(self._context, self._next, self._share)
        self.process_sums()

    def _share(self, update: Update, masked: Words) -> None:
        self._shares = self._context.weights.share_scores(update, masked)

    def process_sums(self) -> None:
        while self._exchange is not None and self._is_scored():
            self._next += 1
            self._exchange = None
            if self._next < len(self._context.sums.batches):
                self._exchange = CheckedExchange(self._context, self._next, self._share)
            else:
                self._context.done()

    def _is_scored(self) -> bool:
        """Process complete sums, and return whether this party has finished the current piece."""
        context, sums = self._context, self._context.sums
        if self._exchange is not None and self._exchange.is_checked():
            for recipient in context.plan.active:
                sums.give(Kind.SCORES, recipient, self._shares.copy(), self._next)
            if context.scores is None:
                return True
        if context.scores is None or (taken := sums.take(Kind.SCORES)) is None:
            return False
        context.scores[sums.batches[self._next]] = decode(taken[1], FEATURE + WEIGHT)
        return True
