"""The bytes that the dealer sends to a party for a segment: seeds, and corrections at the last party.

| part | content |
|---|---|
| 32 bytes | the seed of the party's shares |
| 32 bytes | the seed of the mask of its features, which the dealer also knows |
| 32 bytes | the seed of the mask of its labels |
| 8 bytes each | the corrections of the updates and then of the evaluation, at the last party |
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from vertical.shares import score_sums
from vertical.shares.deals import DealPlan, Offer, count_corrected, deal, draw_all, draw_parts
from vertical.shares.numbers import SEED_BYTES, Stream, Words
from vertical.shares.score_sums import ScoreDeal


@dataclass
class Package:
    """A party's side of a segment's deals.

    Attributes:
        plan: The plan of the deals.
        stream: The stream of the party's shares.
        features_seed: The seed of the mask of its features.
        labels_seed: The seed of the mask of its labels.
        corrections: The corrections that were not used yet. None: the party is not the last.
    """

    plan: DealPlan
    stream: Stream
    features_seed: bytes
    labels_seed: bytes
    corrections: Words | None

    @classmethod
    def from_bytes(cls, body: bytes, plan: DealPlan, *, last: bool, corrections: int) -> "Package":
        """Read a package.

        Args:
            body: The bytes.
            plan: The plan of the deals.
            last: Whether the party is the last.
            corrections: The number of the last party's corrections in the segment.

        Raises:
            ValueError: The length is wrong.
        """
        length = 3 * SEED_BYTES + 8 * corrections * last
        if len(body) != length:
            raise ValueError(f"the dealer's package has {len(body):,} bytes, not the {length:,} bytes of the segment")
        seeds = [body[start : start + SEED_BYTES] for start in range(0, 3 * SEED_BYTES, SEED_BYTES)]
        words = np.frombuffer(body, dtype=np.uint64, offset=3 * SEED_BYTES) if last else None
        return cls(plan, Stream(seeds[0]), seeds[1], seeds[2], words)

    def update(self, rows: int) -> Offer:
        """Return the party's shares for its next update."""
        return Offer(*self._draw(self.plan.parts(rows)))

    def evaluation(self, rows: int) -> ScoreDeal:
        """Return the party's shares for the evaluation."""
        return ScoreDeal(*self._draw(score_sums.parts(self.plan, rows)))

    def _draw(self, parts: Sequence[tuple[int, bool]]) -> list[Words]:
        own = None
        if self.corrections is not None:
            count = count_corrected(parts)
            own, self.corrections = self.corrections[:count], self.corrections[count:]
        return draw_parts(parts, self.stream, own)


def find_evaluated(rows: int, test_rows: int) -> slice:
    """Return the rows of an evaluation among all rows: the test rows, or the training rows if there are none.

    Args:
        rows: The number of training rows.
        test_rows: The number of test rows.
    """
    return slice(rows, rows + test_rows) if test_rows else slice(0, rows)


def deal_segment(
    plan: DealPlan,
    rows: int,
    test_rows: int,
    batches: Iterable[Int64[np.ndarray, "b"]],
    labelled: int,
    *,
    evaluates: bool,
    draw: Callable[[int], bytes] = secrets.token_bytes,
) -> list[bytes]:
    """Return each party's package for a segment.

    Args:
        plan: The plan of the deals.
        rows: The number of training rows.
        test_rows: The number of test rows.
        batches: The rows of each update.
        labelled: The party with labels.
        evaluates: Whether the segment measures the metrics.
        draw: A function that returns a number of random bytes, for the seeds. By default they are fresh and secret.
    """
    parties = len(plan.columns)
    seeds = [[draw(SEED_BYTES) for _ in range(3)] for _ in range(parties)]
    masks = [Stream(own[1]).draw(rows + test_rows, count) for own, count in zip(seeds, plan.columns, strict=True)]
    streams = [Stream(own[0]) for own in seeds]
    corrections = list(deal(plan, masks, batches, streams))
    if evaluates:
        evaluated = find_evaluated(rows, test_rows)
        masks = [mask[evaluated] for mask in masks]
        count = evaluated.stop - evaluated.start
        deals = [ScoreDeal(*shares) for shares in draw_all(score_sums.parts(plan, count), streams)]
        labels_mask = Stream(seeds[labelled][2]).draw(count)
        corrections += score_sums.correct(plan, masks, labels_mask, labelled, deals)
    body = np.concatenate([np.zeros(0, np.uint64), *corrections]).tobytes()
    return [b"".join(own) + (body if party == parties - 1 else b"") for party, own in enumerate(seeds)]
