"""Groups of nearly equal size by predicted risk: their Kaplan-Meier curves, and the calibration at a horizon."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64, Num

from problems.survival.kaplan_meier import kaplan_meier


@dataclass(frozen=True, eq=False)
class RiskCalibration:
    """Predicted and observed risk of an event until a horizon, for each group of rows, in ascending order of the score.

    Attributes:
        rows: The number of rows.
        predicted: The mean predicted risk. nan for a group without rows.
        observed: One minus the Kaplan-Meier estimate. nan if the last row of the group is censored before the horizon.
        low: The lower end of the observed risk's 95 % interval, see `problems.survival.kaplan_meier.SurvivalCurve`.
        high: The upper end.
    """

    rows: Int64[np.ndarray, "groups"]
    predicted: Float64[np.ndarray, "groups"]
    observed: Float64[np.ndarray, "groups"]
    low: Float64[np.ndarray, "groups"]
    high: Float64[np.ndarray, "groups"]


def split_by_risk(cells: Int64[np.ndarray, "grid 2 bins"], groups: int) -> Int64[np.ndarray, "{groups} grid 2"]:
    """Sum the counts over groups of neighbouring bins with nearly equal numbers of rows, such as thirds.

    A bin belongs to the group that contains the middle of its rows, if all rows are in the order of their scores. So a
    group's ends are off by at most half of a bin. With few bins, or many rows in one bin, groups can be empty.

    Args:
        cells: The counts of rows.
        groups: The number of groups.

    Returns:
        The counts of each group, in ascending order of the score: an argument of `kaplan_meier`.
    """
    return np.moveaxis(_sum_groups(cells, _find_borders(cells, groups)), -1, 0)


def split_entries(
    cells: Int64[np.ndarray, "grid 2 bins"], entries: Int64[np.ndarray, "grid bins"], groups: int
) -> Int64[np.ndarray, "{groups} grid"]:
    """Sum the entries over the groups of `split_by_risk`: an argument of `kaplan_meier`.

    Args:
        cells: The counts of rows.
        entries: The number of rows that come under observation at each grid time, by bin.
        groups: The number of groups.
    """
    return np.moveaxis(_sum_groups(entries, _find_borders(cells, groups)), -1, 0)


def calibrate_risk(
    cells: Int64[np.ndarray, "grid 2 bins"],
    survival: Float64[np.ndarray, "bins"],
    horizon: int,
    groups: int,
    entries: Int64[np.ndarray, "grid bins"] | None = None,
) -> RiskCalibration:
    """Compare predicted with observed risk at a horizon, in groups of `split_by_risk`.

    Args:
        cells: The counts of rows.
        survival: The predicted survival of each bin's rows at the horizon.
        horizon: A grid time.
        groups: The number of groups.
        entries: As in `split_entries`. None: all rows enter at grid time 0.
    """
    rows, borders = cells.sum(axis=(0, 1)), _find_borders(cells, groups)
    size, risk = _sum_groups(rows, borders), _sum_groups(rows * (1 - survival), borders)
    curve = kaplan_meier(
        split_by_risk(cells, groups), None if entries is None else split_entries(cells, entries, groups)
    )
    predicted = np.divide(risk, size, out=np.full(groups, np.nan), where=size > 0)
    observed, low, high = (1 - each[:, horizon] for each in (curve.survival, curve.high, curve.low))
    return RiskCalibration(size, predicted, observed, low, high)


def _find_borders(cells: Int64[np.ndarray, "grid 2 bins"], groups: int) -> Int64[np.ndarray, "{groups}+1"]:
    """Return the first bin of each group, and the number of bins."""
    rows = cells.sum(axis=(0, 1))
    doubled_middle = 2 * np.cumsum(rows) - rows
    inner = np.searchsorted(doubled_middle * groups, np.arange(1, groups) * 2 * rows.sum())
    return np.concatenate(([0], inner, [len(rows)]))


def _sum_groups(
    values: Num[np.ndarray, "*axes bins"], borders: Int64[np.ndarray, "borders"]
) -> Num[np.ndarray, "*axes borders-1"]:
    """Sum over the bins of each group, on the last axis."""
    sums = np.concatenate((np.zeros_like(values[..., :1]), np.cumsum(values, axis=-1)), axis=-1)
    return np.diff(sums[..., borders], axis=-1)
