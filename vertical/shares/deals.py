"""The dealer's work: random numbers for each update, and their functions, as shares of all parties.

Every party and the dealer know a seed, from which the party's shares are drawn. Sums of the parties' streams are
uniform, which suffices for masks. For functions of the masks, the last party gets *corrections*: its shares are the
function's value minus the other parties' shares. So the dealer sends a seed to each party, and the corrections to the
last party. In addition, each party with features has a seed of U, the mask of its features.

The dealer deals more than an update needs (`Offer`), so the parties can check its numbers (`checks`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, UInt64

from vertical.problem.objectives import RIDGE
from vertical.shares.numbers import PHASE, SHIFT, WAVE, Stream, Words, add, encode
from vertical.shares.waves import TERMS, turn


class Deal(NamedTuple):
    """A party's shares of the random numbers of one update, of b rows and D weights.

    Attributes:
        weights_mask: The shares r of the mask of the weights.
        truncated: r >> `SHIFT`.
        weights_top: The highest bits of r. Empty without a regulariser.
        products: U (r >> `SHIFT`), without each owner's product by its own share.
        scores_mask: The shares r of the mask of the scores.
        slopes: The cosines of r's angles (`waves.turn`) and then the sines, for each sine and row. For ridge: r modulo
            one period without the lowest bits, and the highest bit of r modulo one period.
        slopes_mask: The shares r of the mask of the slopes.
        gradients: U^T r, without each owner's product by its own share.
    """

    weights_mask: Words
    truncated: Words
    weights_top: Words
    products: Words
    scores_mask: Words
    slopes: Words
    slopes_mask: Words
    gradients: Words


class Offer(NamedTuple):
    """A party's shares of all numbers that the dealer deals for one update.

    Attributes:
        weights_mask, truncated, weights_top, products: As in `Deal`, for two masks of the weights.
        scores_mask, slopes: As in `Deal`, for more rows than the update has (`count_surplus`).
        slopes_mask, gradients: As in `Deal`.
        spare_weights: Random numbers, one for each weight.
        spare_products: U times these numbers.
        spare_slopes: Random numbers, one for each row.
        spare_gradients: U^T times these numbers.
    """

    weights_mask: Words
    truncated: Words
    weights_top: Words
    products: Words
    scores_mask: Words
    slopes: Words
    slopes_mask: Words
    gradients: Words
    spare_weights: Words
    spare_products: Words
    spare_slopes: Words
    spare_gradients: Words


def count_surplus(rows: int) -> int:
    """Return the number of further rows for which the dealer deals masks of scores: a sixteenth, rounded up.

    Args:
        rows: The number of the update's rows.
    """
    return -(-rows // 16)


@dataclass(frozen=True)
class DealPlan:
    """The numbers that determine the shape of a deal.

    Attributes:
        problem: A problem of `vertical.problem.objectives`.
        columns: The number of columns of each party.
        decays: Whether the weights shrink in each update.
        dropped: Of ridge's scores, the number of lowest bits that are dropped.
        scores: Whether the numbers serve the scores of new rows only, by rounded weights (`WEIGHT` bits).
    """

    problem: str
    columns: tuple[int, ...]
    decays: bool
    dropped: int = 20
    scores: bool = False

    @property
    def slices(self) -> list[slice]:
        """The positions of each party's weights."""
        ends = np.cumsum(self.columns).tolist()
        return [slice(end - count, end) for end, count in zip(ends, self.columns, strict=True)]

    @property
    def shift(self) -> int:
        """The number of lowest bits that the parties drop of each weight."""
        return 0 if self.scores else SHIFT

    @property
    def waves(self) -> int:
        """The number of dealt functions of the mask of a score."""
        return 2 if self.problem == RIDGE else 2 * TERMS

    def parts(self, rows: int) -> list[tuple[int, bool]]:
        """Return for each field of an `Offer` its length, and whether the last party gets corrections.

        Args:
            rows: The number of the update's rows.
        """
        weights, slopes = sum(self.columns), self.count_slopes(rows)
        masks = slopes + count_surplus(slopes)
        choices = [(2 * weights, False), (2 * weights, True), (2 * weights * self.decays, True), (2 * rows, True)]
        checked = [(slopes, False), (weights, True)]
        spares = [(weights, False), (rows, True), (slopes, False), (weights, True)]
        return [*choices, (masks, False), (self.waves * masks, True), *checked, *spares]

    def count_slopes(self, rows: int) -> int:
        """Return the number of slopes of an update: one for each row, or none if only scores are computed.

        Args:
            rows: The number of the update's rows.
        """
        return 0 if self.scores else rows


def count_corrected(parts: Sequence[tuple[int, bool]]) -> int:
    """Return the number of the last party's corrections for some parts, see `DealPlan.parts`."""
    return sum(length for length, corrected in parts if corrected)


def draw_parts(parts: Sequence[tuple[int, bool]], stream: Stream, corrections: Words | None = None) -> list[Words]:
    """Return a party's next shares.

    Args:
        parts: The length of each part, and whether the last party gets corrections.
        stream: The party's stream.
        corrections: At the last party, the corrections of all these parts. None at the other parties.
    """
    shares, position = [], 0
    for length, corrected in parts:
        if corrections is not None and corrected:
            shares.append(corrections[position : position + length])
            position += length
        else:
            shares.append(stream.draw(length))
    return shares


def draw_all(parts: Sequence[tuple[int, bool]], streams: Sequence[Stream]) -> list[list[Words]]:
    """Return the next shares of all parties, with zeros in place of the last party's corrections.

    Args:
        parts: See `draw_parts`.
        streams: The streams of all parties.
    """
    zeros = np.zeros(count_corrected(parts), np.uint64)
    return [*(draw_parts(parts, stream) for stream in streams[:-1]), draw_parts(parts, streams[-1], zeros)]


def deal(
    plan: DealPlan,
    masks: Sequence[UInt64[np.ndarray, "n _"]],
    batches: Iterable[Int64[np.ndarray, "b"]],
    streams: Sequence[Stream],
) -> Iterator[Words]:
    """Yield the last party's corrections for each update.

    Args:
        plan: The plan.
        masks: The (n, d) masks U of each party's features.
        batches: The rows of each update.
        streams: The streams of all parties.
    """
    for rows in batches:
        offers = [Offer(*shares) for shares in draw_all(plan.parts(len(rows)), streams)]
        yield np.concatenate(_correct(plan, [mask[rows] for mask in masks], offers))


def _correct(plan: DealPlan, masks: Sequence[Words], offers: Sequence[Offer]) -> list[Words]:
    """Return the last party's corrections, whose fields are 0 in ``offers``."""
    total = Offer(*map(add, zip(*offers, strict=True)))
    choices = zip(np.split(total.weights_mask, 2), *(np.split(own.truncated, 2) for own in offers), strict=True)
    truncated, products = zip(*(correct_products(plan, masks, mask, shares) for mask, *shares in choices), strict=True)
    top = (total.weights_mask >> np.uint64(63))[: len(total.weights_top)]
    turned = [mask[: len(total.slopes_mask)].T for mask in masks]
    gradients = [mask @ (total.slopes_mask - own.slopes_mask) for mask, own in zip(turned, offers, strict=True)]
    spares = zip(masks, plan.slices, strict=True)
    values = {
        "truncated": np.concatenate(truncated),
        "weights_top": top,
        "products": np.concatenate(products),
        "slopes": make_slopes(plan, total.scores_mask),
        "gradients": np.concatenate(gradients),
        "spare_products": add([mask @ total.spare_weights[columns] for mask, columns in spares]),
        "spare_gradients": np.concatenate([mask @ total.spare_slopes for mask in turned]),
    }
    return [value - getattr(total, name) for name, value in values.items()]


def correct_products(
    plan: DealPlan, masks: Sequence[Words], mask: UInt64[np.ndarray, "D"], shares: Sequence[Words]
) -> tuple[UInt64[np.ndarray, "D"], UInt64[np.ndarray, "b"]]:
    """Return the truncated mask of the weights, and its product with the masks U, without the owners' own products.

    Args:
        plan: The plan.
        masks: The rows' masks U of each party's features.
        mask: The mask of the weights.
        shares: The parties' shares of the truncated mask, 0 at the last party, which gets a correction.
    """
    truncated = mask >> np.uint64(plan.shift)
    # the share of the last party is the correction, so the other parties' shares are the known shares
    others = [*(truncated - own for own in shares[:-1]), add(shares)]
    products = [own @ rest[columns] for own, rest, columns in zip(masks, others, plan.slices, strict=True)]
    return truncated, add(products)


def make_slopes(plan: DealPlan, mask: UInt64[np.ndarray, "b"]) -> UInt64[np.ndarray, "parts"]:
    """Return the functions of a mask of scores from which the parties compute slopes.

    Args:
        plan: The plan.
        mask: The mask.
    """
    if plan.problem == RIDGE:
        phases = mask & np.uint64((1 << PHASE) - 1)
        return np.concatenate([phases >> np.uint64(plan.dropped), phases >> np.uint64(PHASE - 1)])
    angles = turn(plan.problem, mask)
    return encode(np.concatenate([np.cos(angles), np.sin(angles)]).ravel(), WAVE)
