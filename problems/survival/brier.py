"""Brier score of predicted survival, from counts.

E. Graf and others, "Assessment and comparison of prognostic classification schemes for survival data", Statistics in
Medicine 18, 1999. With the predicted survival p_i at time t, the mean over all rows of

    p_i^2 / G(k-) for events at k <= t,    (1 - p_i)^2 / G(t) for rows that leave after t,    0 for other rows.

The weights add up to the number of rows (`problems.survival.kaplan_meier.weigh_events`). So the score of a model that
predicts the Kaplan-Meier estimate S(t) for all rows is exactly S(t) (1 - S(t)).
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64, Int64

from problems.survival.dynamic_auc import count_controls, weigh_cases
from problems.survival.kaplan_meier import censoring_survival, kaplan_meier


@dataclass(frozen=True, eq=False)
class BrierScores:
    """Brier scores at each time. nan if the last rows at risk are censored by then, since G(t) is 0.

    Attributes:
        model: The scores of the predictions.
        constant: The scores of the Kaplan-Meier estimate of the same rows.
    """

    model: Float64[np.ndarray, "times"]
    constant: Float64[np.ndarray, "times"]


def brier_scores(
    cells: Int64[np.ndarray, "grid 2 bins"],
    survival: Float64[np.ndarray, "bins times"],
    times: Int64[np.ndarray, "times"],
) -> BrierScores:
    """Compute the Brier score at each time.

    Args:
        cells: The counts of rows, which also estimate G.
        survival: The predicted survival of each bin's rows at each time.
        times: Grid times.
    """
    counts = cells.sum(axis=-1)
    censoring, observed = censoring_survival(counts)[times], kaplan_meier(counts).survival[times]
    known = (censoring > 0) & (counts.sum() > 0)
    censoring[~known] = np.nan
    controls = count_controls(cells, times) / censoring[:, None]
    total = (weigh_cases(cells, times) * survival.T**2 + controls * (1 - survival.T) ** 2).sum(axis=1)
    return BrierScores(total / max(counts.sum(), 1), np.where(known, observed * (1 - observed), np.nan))


def integrate_scores(scores: Float64[np.ndarray, "times"], at: Float[np.ndarray, "times"]) -> float:
    """Return the mean of scores over time, with linear interpolation between the times.

    Args:
        scores: Scores at each time, such as ``brier_scores(...).model``. If a score is nan, the mean is nan.
        at: The times themselves, ascending, at least two.

    Raises:
        ValueError: The times are not ascending, or fewer than two.
    """
    if len(at) < 2 or (np.diff(at) <= 0).any():
        raise ValueError(f"an integral over time needs at least two ascending times, got {at.tolist()}")
    return float(np.trapezoid(scores, at) / (at[-1] - at[0]))
