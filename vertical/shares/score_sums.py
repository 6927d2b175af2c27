"""Metrics of shared scores: only sums of waves of the scores, over all rows and over the positives, are published.

A wave sum is the sum over rows of cos(2 pi k z / PERIOD), or of sin, for k in `NUMBERS`. A smooth function of the
score is nearly a sum of these waves for scores within +-`RANGE`, so its mean over rows is a sum of wave sums. The AUC
is a sum of products of the wave sums of positives and negatives, since the sign of a difference is a sum of odd sines.
Short waves serve it if scores are moderate, long waves if they are large. On UCI credit its error was .0004 for scores
with root mean squares from 1.7 to 10, .0015 at 0.5, and .012 at 0.17.

The party with labels publishes them minus a mask, which only this party and the dealer know.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, NamedTuple

import numpy as np
from jaxtyping import UInt64
from numpy.typing import NDArray

from vertical.problem.objectives import LOGISTIC, make_objective
from vertical.shares.deals import Deal, DealPlan, correct_products
from vertical.shares.numbers import PERIOD, PHASE, Stream, Words, add, decode, encode

Array = NDArray[np.float64]

_ODD: Final = np.arange(1, 128, 2)
# long waves, short waves with a quarter of their period, and further waves that only functions of the score need
_LONG, _SHORT = _ODD[:32], 4 * _ODD
NUMBERS: Final = np.concatenate([_LONG, _SHORT, np.array([2, 6, 8, 10, 14, 16])])
WAVES: Final = len(NUMBERS)
RANGE: Final = 48.0
# the root mean square of the scores up to which short waves serve the AUC
MAX_SHORT: Final = 5.0
# the root mean square of the scores above which they count as out of range
MAX_SPREAD: Final = 16.0
_BITS: Final = 20  # fractional bits of a public wave, and of a dealt wave
_GRID: Final = 2001


class ScoreDeal(NamedTuple):
    """A party's shares of the random numbers of one evaluation, of n rows and D weights.

    Attributes:
        weights_mask, truncated, products, scores_mask: See `vertical.shares.deals.Deal`.
        waves: cos(2 pi k r / PERIOD) and then sin, of the mask r of the scores, for each k and row.
        labelled: The same times the mask of the labels, without the share of the party with labels.
    """

    weights_mask: Words
    truncated: Words
    products: Words
    scores_mask: Words
    waves: Words
    labelled: Words

    def as_update(self) -> Deal:
        """Return the shares that the scores need, as the shares of an update."""
        empty = np.zeros(0, np.uint64)
        shown = self.weights_mask, self.truncated, empty, self.products, self.scores_mask
        return Deal(*shown, empty, empty, empty)


def parts(plan: DealPlan, rows: int) -> list[tuple[int, bool]]:
    """Return for each field of a `ScoreDeal` its length, and whether the last party gets corrections."""
    weights, waves = sum(plan.columns), 2 * WAVES * rows
    labelled = waves * (plan.problem == LOGISTIC)
    return [(weights, False), (weights, True), (rows, True), (rows, False), (waves, True), (labelled, True)]


def correct(
    plan: DealPlan,
    masks: Sequence[UInt64[np.ndarray, "n _"]],
    labels_mask: UInt64[np.ndarray, "n"],
    labelled: int,
    deals: Sequence[ScoreDeal],
) -> list[Words]:
    """Return the last party's corrections, whose fields are 0 in ``deals``.

    Args:
        plan: The plan.
        masks: The masks of each party's features of the rows.
        labels_mask: The mask of the labels of the rows.
        labelled: The party with labels.
        deals: The shares of each party.
    """
    total = ScoreDeal(*map(add, zip(*deals, strict=True)))
    truncated, products = correct_products(plan, masks, total.weights_mask, [own.truncated for own in deals])
    waves = encode(np.stack(_waves(total.scores_mask)), _BITS).ravel()
    values = [truncated - total.truncated, products - total.products, waves - total.waves]
    if not len(total.labelled):
        return [*values, total.labelled]
    others = total.waves - deals[labelled].waves if labelled == len(masks) - 1 else waves - deals[labelled].waves
    return [*values, (others.reshape(2 * WAVES, -1) * labels_mask).ravel() - total.labelled]


def add_waves(
    opened: UInt64[np.ndarray, "n"],
    dealt: ScoreDeal,
    labels: UInt64[np.ndarray, "n"] | None,
) -> UInt64[np.ndarray, "sums"]:
    """Return a party's shares of the wave sums: over all rows and, for classification, over the positives.

    Args:
        opened: The masked scores, the sum over the parties.
        dealt: The party's shares of the random numbers.
        labels: The labels 0 and 1 at the party with labels, the masked labels at other parties. None: a regression.
    """
    cosines, sines = (encode(wave, _BITS) for wave in _waves(opened))

    def sums(shares: Words, weights: Words | None) -> Words:
        cos, sin = shares.reshape(2, WAVES, -1)
        turned = np.concatenate([cosines * cos + sines * sin, sines * cos - cosines * sin])
        total: Words = (turned if weights is None else turned * weights).sum(axis=1, dtype=np.uint64)
        return total

    total = sums(dealt.waves, None)
    if labels is None:
        return total
    return np.concatenate([total, sums(dealt.waves, labels) + sums(dealt.labelled, None)])


def _waves(phases: UInt64[np.ndarray, "n"]) -> tuple[Array, Array]:
    """Return the (k, n) cosines and sines of scores, or masks of scores."""
    angles = np.outer(NUMBERS, (phases & np.uint64((1 << PHASE) - 1)) * (2.0 * np.pi / 2.0**PHASE))
    return np.cos(angles), np.sin(angles)


def spread(opened: UInt64[np.ndarray, "sums"], rows: int) -> float:
    """Return the root mean square of the scores, from the longest cosine; too small for scores above `PERIOD` / 4.

    Args:
        opened: The wave sums, added over the parties.
        rows: The number of rows.
    """
    mean = float(decode(opened[:1], 2 * _BITS)[0]) / rows
    return PERIOD / (2.0 * np.pi) * float(np.sqrt(max(2.0 - 2.0 * mean, 0.0)))


def measure(problem: str, opened: UInt64[np.ndarray, "sums"], rows: int, positives: int) -> dict[str, float]:
    """Return the metrics of wave sums.

    Args:
        problem: The problem.
        opened: The wave sums, added over the parties.
        rows: The number of rows.
        positives: The number of positives. 0 for a regression.
    """
    sums = decode(opened, 2 * _BITS)
    if problem != LOGISTIC:
        square = max(_mean("square", 0.0, sums, rows), 0.0)
        return {"loss": max(_mean(problem, 0.0, sums, rows), 0.0), "rmse": float(np.sqrt(square))}
    total, positive = np.split(sums, 2)
    negative, negatives = total - positive, rows - positives
    of_positives = positives and positives * _mean(problem, 1.0, positive, positives)
    of_negatives = negatives and negatives * _mean(problem, -1.0, negative, negatives)
    metrics = {"loss": max((of_positives + of_negatives) / rows, 0.0)}
    if positives and negatives:
        small = spread(opened, rows) <= MAX_SHORT
        used = np.isin(NUMBERS, _SHORT if small else _LONG)
        cos_p, sin_p, cos_n, sin_n = (part[used] for half in (positive, negative) for part in np.split(half, 2))
        differences = sin_p * cos_n - cos_p * sin_n
        wins = (4.0 / np.pi / _ODD[: used.sum()]) @ differences / (positives * negatives)
        metrics["auc"] = float(np.clip(0.5 + 0.5 * wins, 0.0, 1.0))
    return metrics


def _mean(name: str, label: float, sums: Array, rows: int) -> float:
    return float(np.array(fit(name, label)) @ np.concatenate([[rows], sums])) / rows


@cache
def fit(name: str, label: float) -> tuple[float, ...]:
    """Return the coefficients of a function of the score: of 1, of the cosines, and of the sines.

    Args:
        name: A problem, whose loss is meant, or "square".
        label: The label of the loss.
    """
    scores = np.linspace(-RANGE, RANGE, _GRID)
    function: Callable[[Array, Array], Array] = (
        (lambda z, y: np.square(z)) if name == "square" else make_objective(name, 0.0).losses
    )
    angles = np.outer(scores, 2.0 * np.pi / PERIOD * NUMBERS)
    basis = np.hstack([np.ones((_GRID, 1)), np.cos(angles), np.sin(angles)])
    values = function(scores, np.full(_GRID, label))
    return tuple(np.linalg.lstsq(basis, values, rcond=1e-6)[0].tolist())


def mask_labels(labels: UInt64[np.ndarray, "n"], seed: bytes) -> UInt64[np.ndarray, "n"]:
    """Return labels minus their mask, for the other parties.

    Args:
        labels: The labels, 0 and 1.
        seed: The seed of the mask.
    """
    return labels - Stream(seed).draw(len(labels))
