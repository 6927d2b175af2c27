"""From risk scores to probabilities: the survival of rows without an event until each border of the grid.

With hazards the model's score f and the baselines alpha_k give S(k) = product over j <= k of 1 - sigmoid(f + alpha_j).
With a Cox model the score f and the cumulative baseline hazard H_k (N. E. Breslow, JRSS B 34, 1972) give
S(k) = exp(-H_k exp(f)).
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64

from problems.data.spec import DataError
from problems.objectives.hazard import HAZARD


@dataclass(frozen=True, eq=False)
class Baseline:
    """The part of a survival model that all rows share.

    Attributes:
        loss: "hazard" or "cox".
        times: The borders of the intervals. The last interval, after the last border, has no survival.
        values: Of hazards alpha, of a Cox model the cumulative baseline hazard, up to each border.
    """

    loss: str
    times: Float64[np.ndarray, "k"]
    values: Float64[np.ndarray, "k"]

    def survive(self, scores: Float[np.ndarray, "n"]) -> Float64[np.ndarray, "n k"]:
        """Return the probability that each row has no event until each border.

        Args:
            scores: The rows' scores.
        """
        score = np.asarray(scores, np.float64)[:, None]
        if self.loss == HAZARD:
            hazards = np.cumsum(np.logaddexp(0.0, score + self.values), axis=1)
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                # without an event so far the hazard is 0, whatever the score
                hazards = np.where(self.values > 0, self.values * np.exp(score), 0.0)
        survival: np.ndarray = np.exp(-hazards)
        return survival

    def find_border(self, time: float) -> int:
        """Return the last border at or before a time; -1 for a time before the first border, when survival is 1.

        Args:
            time: The time, in the unit of the borders.

        Raises:
            DataError: The time is not a number of 0 or more, or is after the last border.
        """
        last = float(self.times[-1])
        if not 0 <= time <= last:
            allowed = f"times from 0 to {last:g}, the last border of the run's intervals"
            hint = "choose an earlier time, or train with later time-borders"
            raise DataError("--times", got=f"{time:g}", allowed=allowed, hint=hint)
        return int(np.searchsorted(self.times, time, "right")) - 1
