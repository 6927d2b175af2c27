"""AUC at given times, of rows with an event until then (cumulative cases) against later rows (dynamic controls).

H. Uno and others, "Evaluating prediction rules for t-year survivors with censored regression models", JASA 102, 2007:

    AUC(t) = sum over cases i and controls j of w_i [r_i > r_j] / (number of controls * sum over cases i of w_i)

A case has an event at k <= t and the weight 1 / G(k-), see `problems.survival.kaplan_meier.weigh_events`. A control
leaves after t. Rows censored until t are neither. Equal scores count one half.
"""

import numpy as np
from jaxtyping import Bool, Float64, Int64

from problems.survival.kaplan_meier import censoring_survival, weigh_events


def dynamic_auc(
    cells: Int64[np.ndarray, "grid 2 bins"],
    times: Int64[np.ndarray, "times"],
    wide: Bool[np.ndarray, "bins"] | None = None,
) -> tuple[Float64[np.ndarray, "times"], Float64[np.ndarray, "times"]]:
    """Return the AUC at each time, and the bound of its difference from the AUC of the exact scores.

    Args:
        cells: The counts of rows, which also estimate G.
        times: Grid times.
        wide: Whether each bin may contain different scores (`problems.binned_scores.find_wide_bins`). None: all may.

    Returns:
        The AUCs, nan without cases or controls; and the bounds: half the weighted share of pairs in a shared wide bin.
    """
    cases, controls = weigh_cases(cells, times), count_controls(cells, times)
    tied = cases * controls
    ordered = (cases * np.cumsum(controls, axis=1) - tied / 2).sum(axis=1)
    pairs = cases.sum(axis=1) * controls.sum(axis=1)
    pairs[pairs == 0] = np.nan
    bounds = tied.sum(axis=1, where=True if wide is None else wide) / 2 / pairs
    return ordered / pairs, np.nan_to_num(bounds)


def weigh_cases(
    cells: Int64[np.ndarray, "grid 2 bins"], times: Int64[np.ndarray, "times"]
) -> Float64[np.ndarray, "times bins"]:
    """Return the sum of the weights of the events until each time, by bin."""
    weights = weigh_events(censoring_survival(cells.sum(axis=-1)))
    sums: np.ndarray = np.cumsum(cells[:, 1] * weights[:, None], axis=0)[times]
    return sums


def count_controls(
    cells: Int64[np.ndarray, "grid 2 bins"], times: Int64[np.ndarray, "times"]
) -> Int64[np.ndarray, "times bins"]:
    """Return the number of rows that leave after each time, by bin."""
    rows = cells.sum(axis=1)
    after: np.ndarray = (rows.sum(axis=0) - np.cumsum(rows, axis=0))[times]
    return after
