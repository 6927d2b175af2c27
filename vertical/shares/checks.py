"""A check of the dealer's numbers by the parties, before an update uses them.

The parties choose at random, after the dealer has dealt:

- one of two masks of the weights, and the rows' masks of scores among a sixteenth more. They publish the other masks,
  and compute the dealt functions of these (truncation, highest bits, waves) themselves.
- factors. Products P = U t of a mask U of features and a dealt vector t are checked beside the spare products Q = U s:
  the parties publish v = factor t + s, and factor P + Q must be U v.

All comparisons are one sum of the parties' numbers with random factors, which is 0 if the dealer is honest. A random
number hides each party's number. The random choices come from a hash of all masked features: the dealer does not see
them, and cannot compute them unless it knows the features of all parties.

A wrong product that changes a weight by x passes with a chance of at most about x 2^-19. A wrong mask of weights passes
with a chance of 1/2, a wrong mask of a score with 16/17.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, UInt64

from vertical.shares.deals import Deal, DealPlan, Offer, count_surplus, make_slopes
from vertical.shares.numbers import Stream, Words


@dataclass
class CheckedDeal:
    """The check of one update's numbers at a party.

    Attributes:
        deal: The chosen numbers.
        published: The party's share of the numbers to publish: the unused masks, and the masked vectors.
    """

    deal: Deal
    published: Words
    # the party's number without its parts that depend on published numbers, and the factors of these parts
    _known: Words
    _factors: tuple[Words, Words, Words]
    _plan: DealPlan
    _columns: slice
    _leads: bool

    def compare(self, opened: UInt64[np.ndarray, "published"]) -> UInt64[np.ndarray, "1"]:
        """Return the party's number of a sum that is 0 if the dealer is honest.

        Args:
            opened: The published numbers, added over the parties.
        """
        (surplus, weights, slopes), plan = self._factors, self._plan
        width, rows = sum(plan.columns), len(slopes)
        masks, spread, masked_weights, masked_slopes = np.split(
            opened, [width, len(opened) - width - rows, len(opened) - rows]
        )
        number = self._known - _dot(weights, masked_weights[self._columns]) - _dot(slopes, masked_slopes)
        if self._leads:
            top = (masks >> np.uint64(63))[: width * plan.decays]
            number -= _dot(surplus, np.concatenate([masks >> np.uint64(plan.shift), top, make_slopes(plan, spread)]))
        return number


class DealChecks:
    """The checks of a segment's deals at a party.

    Args:
        me: The party's index.
        plan: The plan of the deals.
        mask: The (n, d) mask U of the party's features.
        masked: The masked features of all parties, in the order of the parties.
    """

    def __init__(
        self, me: int, plan: DealPlan, mask: UInt64[np.ndarray, "n d"], masked: Sequence[UInt64[np.ndarray, "n _"]]
    ) -> None:
        self._me, self._plan, self._mask = me, plan, mask
        digest = hashlib.sha256()
        for features in masked:
            digest.update(np.ascontiguousarray(features).data)
        self._coin = Stream(digest.digest())

    def choose(self, rows: Int64[np.ndarray, "b"], offer: Offer) -> CheckedDeal:
        """Choose an update's numbers. All parties call it for the same updates in the same order.

        Args:
            rows: The update's rows.
            offer: The party's shares of the numbers that the dealer dealt for the update.
        """
        plan, coin, mask, count = self._plan, self._coin, self._mask[rows], self._plan.count_slopes(len(rows))
        columns = plan.slices[self._me]
        chosen = int(coin.draw(1)[0] & np.uint64(1))
        # the dealer's choices of the first four fields: the used one, and the other
        used, other = zip(*(field.reshape(2, -1)[[chosen, 1 - chosen]] for field in offer[:4]), strict=True)
        order = np.argsort(coin.draw(len(offer.scores_mask)), kind="stable")
        slopes = offer.slopes.reshape(plan.waves, len(order))
        scores, surplus = ((offer.scores_mask[part], slopes[:, part].ravel()) for part in np.split(order, [count]))
        deal = Deal(*used, *scores, offer.slopes_mask, offer.gradients)  # type: ignore[call-arg]

        # odd factors of the rows, so the party's spare products hide its number
        factor, by_row, by_weight = coin.draw(1), coin.draw(len(rows)) | np.uint64(1), coin.draw(len(offer.gradients))
        weights, residuals = factor * deal.truncated, factor * deal.slopes_mask
        published = [other[0], surplus[0], weights + offer.spare_weights, residuals + offer.spare_slopes]
        values = np.concatenate([other[1], other[2], surplus[1]])
        by_value, by_column, by_slope = coin.draw(len(values)), by_row @ mask, mask[:count] @ by_weight[columns]
        known = _dot(by_row, factor * deal.products + offer.spare_products) + _dot(by_column, weights[columns])
        known += _dot(by_weight, factor * deal.gradients + offer.spare_gradients) + _dot(by_slope, residuals)
        known += _dot(by_value, values)
        factors = by_value, by_column, by_slope
        return CheckedDeal(deal, np.concatenate(published), known, factors, plan, columns, self._me == 0)


def _dot(factors: Words, values: Words) -> Words:
    """Return the sum of products as an array, since NumPy warns of overflows of single numbers."""
    total: Words = factors @ values[:, None]
    return total


def count_published(plan: DealPlan, rows: int) -> int:
    """Return the length of `CheckedDeal.published` for an update.

    Args:
        plan: The plan of the deals.
        rows: The number of the update's rows.
    """
    slopes = plan.count_slopes(rows)
    return 2 * sum(plan.columns) + count_surplus(slopes) + slopes
