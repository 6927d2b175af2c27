"""A party's run of one segment on secret shares: it joins the other parties, trains, evaluates, and opens the blocks.

The parties first publish their masked features. In each update they publish three masked vectors (`updates`). An
update starts from the weights W updates before (W: the plan's window), so W updates are under way at once, and the
result does not depend on timing. At the end of the run each party receives all shares of the weights of its columns,
unless the weights stay shared. Shared weights score new rows in a later run.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from vertical.injection import Injection
from vertical.problem.objectives import LOGISTIC
from vertical.segment.party import SegmentRun
from vertical.segment.plan import Holding, PartyState, Recorder, SegmentOutcome, SegmentPlan
from vertical.shares.numbers import FEATURE, MAX_WEIGHT, WEIGHT, Stream, Words, decode, encode
from vertical.shares.order import DealOrder
from vertical.shares.package import Package
from vertical.shares.phases import (
    BlockOpening,
    SharedEvaluation,
    SharedScoring,
    SharedUpdates,
    SharesContext,
    WeightRounding,
)
from vertical.shares.score_sums import mask_labels
from vertical.shares.sums import SharedSums
from vertical.shares.updates import SharedWeights
from vertical.transport.endpoint import Endpoint
from vertical.transport.frames import FinalError, PartyError

Fetch = Callable[[], Awaitable[bytes]]


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
    _rounded: Words | None = None

    async def _set_up(self, recorder: Recorder | None, events: bool) -> Any:
        plan, router = self.plan, self._router
        hellos = await self._join()
        sums = SharedSums(self.me, plan, router.broadcast, router.send)
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
        return SharesContext(self.me, plan, weights, package, mask, sums, router.done, labels)

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
        if plan.score:
            _check_scale(features, plan.parties)
        labelled = me == plan.active[0] and not plan.score
        trained, evaluated = _labels(plan, holding) if labelled else (None, None)
        weights = SharedWeights(me, deals, features, sums.features, share, plan.step, plan.weight, trained)
        return weights, package, evaluated

    async def _train(self, context: Any) -> None:
        context.sums.check_features()
        if self.plan.epochs:
            await self._router.through(SharedUpdates(context))
        if self.plan.rounds:
            rounding = WeightRounding(context)
            await self._router.through(rounding)
            self._rounded = rounding.rounded

    async def _evaluate(self, context: Any) -> None:
        if self.plan.evaluate:
            await self._router.through(SharedEvaluation(context, len(context.sums.batches)))
        if self.plan.last and not self.plan.keep_shared:
            opening = BlockOpening(context)
            await self._router.through(opening)
            assert opening.block is not None
            if np.abs(opening.block).max(initial=0.0) >= MAX_WEIGHT / 2:
                raise FinalError(self.me, "its weights exceed the range of shares: lower learning-rate")
            self._block = opening.block

    async def _score(self, context: Any) -> None:
        if self.plan.score:
            await self._router.through(SharedScoring(context))

    def _outcome(self, context: Any, counters: dict[str, float]) -> SegmentOutcome:
        block = np.zeros(self.plan.columns[self.me]) if self._block is None else self._block
        return SegmentOutcome(
            block,
            metrics=context.metrics,
            counters=counters,
            scores=context.scores,
            share=context.weights.weights,
            rounded=self._rounded,
        )


def _check_scale(features: Words, parties: int) -> None:
    """Raise ValueError if scores could be outside the range of shares, +-2^32, for weights up to `MAX_WEIGHT`."""
    limit = 2.0 ** (63 - FEATURE - WEIGHT) / MAX_WEIGHT / parties
    beyond = int((np.abs(decode(features, FEATURE)).sum(axis=1) >= limit).sum())
    if beyond:
        words = f"the features of {beyond:,} of {features.shape[0]:,} rows add up to {limit:,.0f} or more"
        raise ValueError(f"{words}: check that the columns have the scale of the training columns")


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
