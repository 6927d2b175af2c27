"""A party's work in the updates of shared weights: three published sums for each update.

    c = w + r          the masked weights
    c = z + r          the masked scores z = X w of the update's rows
    c = theta + r      the masked slopes

Each party sends its share of c to all other parties, and adds the shares up. A party's share of w then changes by its
share of -step X^T theta. The labels are at one party, which subtracts their part from its own shares.
"""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64, UInt64
from numpy.typing import NDArray

from vertical.problem.objectives import LOGISTIC, RIDGE
from vertical.shares.deals import Deal, DealPlan
from vertical.shares.numbers import (
    COEFFICIENT,
    FEATURE,
    OFFSET,
    PHASE,
    SHIFT,
    SLOPE,
    WEIGHT,
    Words,
    encode,
)
from vertical.shares.waves import TERMS, fit_waves, turn

Array = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass
class Update:
    """An update under way at a party.

    Attributes:
        rows: The rows.
        deal: The party's shares of the random numbers.
        rounded: The party's shares of the rounded weights, `WEIGHT` bits. Set by `mask_scores`.
        slopes: The party's shares of the slopes times the step. Set by `mask_slopes`.
    """

    rows: Rows
    deal: Deal
    rounded: Words = field(default_factory=lambda: np.zeros(0, np.uint64))
    slopes: Words = field(default_factory=lambda: np.zeros(0, np.uint64))


@dataclass
class SharedWeights:
    """A party's shares of all weights, and its features.

    Attributes:
        me: The party's index.
        plan: The plan of the deals.
        features: The party's (n, d) features, `FEATURE` bits.
        masked: The (n, d) features minus their mask, of each other party.
        weights: The party's (D,) shares of the weights, `WEIGHT + SHIFT` bits; rounded to `WEIGHT` bits if they score
            new rows.
        step: The step size gamma.
        decay: The regulariser's factor lambda.
        labels: The (n,) labels: 0 and 1, or numbers. None at a party without labels.
    """

    me: int
    plan: DealPlan
    features: UInt64[np.ndarray, "n d"]
    masked: dict[int, UInt64[np.ndarray, "n _"]]
    weights: UInt64[np.ndarray, "D"]
    step: float
    decay: float
    labels: Float64[np.ndarray, "n"] | None = None

    def mask_weights(self, update: Update) -> Words:
        """Return the party's share of the masked weights."""
        return self.weights + update.deal.weights_mask

    def mask_scores(self, update: Update, opened: UInt64[np.ndarray, "D"]) -> Words:
        """Return the party's share of the masked scores. The arguments are the arguments of `share_scores`."""
        return self.share_scores(update, opened) + update.deal.scores_mask

    def share_scores(self, update: Update, opened: UInt64[np.ndarray, "D"]) -> Words:
        """Return the party's share of the scores; for a regression in training, of the scores minus the labels.

        Args:
            update: The update.
            opened: The masked weights, the sum over the parties without `OFFSET`.
        """
        opened, deal, rows, shift = opened + OFFSET, update.deal, update.rows, np.uint64(self.plan.shift)
        public = (opened >> shift) - (OFFSET >> shift)
        scores = np.zeros(len(rows), np.uint64) - deal.products
        for party, columns in enumerate(self.plan.slices):
            if party == self.me:
                scores += self.features[rows] @ (public[columns] - deal.truncated[columns])
            else:
                scores -= self.masked[party][rows] @ deal.truncated[columns]
        if len(deal.weights_top):
            lost = np.where(opened >> np.uint64(63), np.uint64(0), deal.weights_top << np.uint64(64 - SHIFT))
            update.rounded = lost - deal.truncated + (public if self.me == 0 else np.uint64(0))
        if self.labels is not None and self.plan.problem != LOGISTIC:
            scores -= encode(self.labels[rows], FEATURE + WEIGHT)
        return scores

    def mask_slopes(self, update: Update, opened: UInt64[np.ndarray, "b"]) -> Words:
        """Return the party's share of the masked slopes.

        Args:
            update: The update.
            opened: The masked scores, the sum over the parties.
        """
        rate = self.step / len(update.rows)
        if self.plan.problem == RIDGE:
            update.slopes = self._linear(update, opened, 2.0 * rate)
        else:
            update.slopes = self._waves(update, opened, rate)
        return update.slopes + update.deal.slopes_mask

    def _waves(self, update: Update, opened: Words, rate: float) -> Words:
        angles = turn(self.plan.problem, opened)
        factors = rate * np.array(fit_waves(self.plan.problem))[:, None]
        sines, cosines = encode(factors * np.sin(angles), COEFFICIENT), encode(factors * np.cos(angles), COEFFICIENT)
        dealt = update.deal.slopes.reshape(2, TERMS, -1)
        slopes: Words = (sines * dealt[0] - cosines * dealt[1]).sum(axis=0, dtype=np.uint64)
        if self.labels is not None and self.plan.problem == LOGISTIC:
            slopes += encode(rate * (0.5 - self.labels[update.rows]), SLOPE)
        return slopes

    def _linear(self, update: Update, opened: Words, rate: float) -> Words:
        """Return shares of rate * (z - y), of differences within a quarter of a period."""
        dropped = self.plan.dropped
        kept = PHASE - dropped
        phases = (opened + np.uint64(1 << (PHASE - 2))) & np.uint64((1 << PHASE) - 1)
        low, top = update.deal.slopes.reshape(2, -1)
        lost = np.where(phases >> np.uint64(PHASE - 1), np.uint64(0), top << np.uint64(kept))
        residuals: Words = lost - low
        if self.me == 0:
            residuals += (phases >> np.uint64(dropped)) - np.uint64(1 << (kept - 2))
        # residuals have FEATURE + WEIGHT - dropped bits
        residuals *= encode(np.array([rate]), SLOPE - (FEATURE + WEIGHT - dropped))
        return residuals

    def apply(self, update: Update, opened: UInt64[np.ndarray, "b"]) -> None:
        """Change the party's shares of the weights by the update.

        Args:
            update: The update.
            opened: The masked slopes, the sum over the parties.
        """
        deal, rows = update.deal, update.rows
        gradients = np.zeros(len(self.weights), np.uint64) - deal.gradients
        for party, columns in enumerate(self.plan.slices):
            if party == self.me:
                gradients[columns] += self.features[rows].T @ (opened - deal.slopes_mask)
            else:
                gradients[columns] -= self.masked[party][rows].T @ deal.slopes_mask
        if len(update.rounded):
            gradients += update.rounded * encode(np.array([self.step * self.decay]), SHIFT)
        self.weights = self.weights - gradients
