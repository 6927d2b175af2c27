"""The curves of a run on evaluated rows: survival of all rows and by risk, and the calibration at a horizon."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from problems.least_cell import is_small
from problems.survival.concordance import harrell, harrell_interval
from problems.survival.kaplan_meier import kaplan_meier
from problems.survival.risk_groups import calibrate_risk, split_by_risk, split_entries

THIRDS = ("lowest third of risk", "middle third of risk", "highest third of risk")
# with at least this number of events the calibration has tenths, otherwise thirds
_EVENTS_FOR_TENTHS = 100


@dataclass(frozen=True, eq=False)
class CountedRows:
    """Rows with times, counted by grid time, event and bin of the score.

    Attributes:
        cells: The counts.
        scores: The score of each bin, ascending.
        entries: The number of rows that come under observation at each grid time, by bin. None: all at grid time 0.
        sites: The counts of rows by site, grid time and event. None: the server cannot assign the rows to sites.
    """

    cells: Int64[np.ndarray, "grid 2 bins"]
    scores: Float64[np.ndarray, "bins"]
    entries: Int64[np.ndarray, "grid bins"] | None = None
    sites: dict[int, Int64[np.ndarray, "grid 2"]] | None = None


def summarise(
    rows: CountedRows,
    times: Sequence[float],
    horizon: int,
    survival: Float64[np.ndarray, "bins borders"] | None,
    least_cell: int = 1,
) -> dict[str, Any]:
    """Describe the survival of rows, for survival.json.

    With a least cell above 1 the curves have fewer times. Between two times of the curve of all rows, no event happens
    or at least as many as the least cell, and the same is true of censorings. The thirds of risk have the times of
    these for which it is true in each third. The calibration is then by thirds, at their last time until the horizon
    or, without such a time, at their first.

    Args:
        rows: The rows.
        times: The borders of the grid.
        horizon: The grid time of the calibration.
        survival: The predicted survival of each bin's rows until each border. None: the model predicts scores alone.
        least_cell: The smallest number of rows that the description may reveal.

    Returns:
        ``rows``, ``events``, ``least_cell``, ``concordance``, ``all``, ``risk_groups``, ``calibration`` and
        ``left_out``, see docs/run-directory.md.
    """
    counts = split_by_risk(rows.cells, len(THIRDS))
    entries = None if rows.entries is None else split_entries(rows.cells, rows.entries, len(THIRDS))
    shown = _choose_times(counts.sum(axis=0, keepdims=True), list(range(len(times))), least_cell)
    parts = _choose_times(counts, shown, least_cell)
    found: dict[str, Any] = {"rows": int(counts.sum()), "events": int(counts[..., 1].sum())}
    found["least_cell"] = least_cell
    interval = harrell_interval(rows.cells) if rows.entries is None else (np.nan, np.nan)
    value = harrell(rows.cells, entries=rows.entries).value
    found["concordance"] = [round_finite(each) for each in (value, *interval)]
    left_out: list[str] = []
    if not shown:
        left_out.append("curves: the counts between any two times are small")
    else:
        everyone = None if entries is None else entries.sum(axis=0)
        found["all"] = describe_curve(counts.sum(axis=0), times, everyone, shown)
    if shown and not parts:
        left_out.append("thirds of risk: the counts between any two times are small")
    elif parts:
        found["risk_groups"] = [
            {"group": name, **describe_curve(own, times, None if entries is None else entries[number], parts)}
            for number, (name, own) in enumerate(zip(THIRDS, counts, strict=True))
            if own.any()
        ]
    if survival is None:
        left_out.append("calibration: the model predicts scores, not probabilities")
    elif parts:
        at = max((time for time in parts if time <= horizon), default=parts[0])
        found["calibration"] = _calibrate(rows, survival, at, times, least_cell)
    return {**found, "left_out": left_out}


def describe_curve(
    counts: Int64[np.ndarray, "grid 2"],
    times: Sequence[float],
    entries: Int64[np.ndarray, "grid"] | None = None,
    shown: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Return the Kaplan-Meier curve of rows as lists of equal length, which begin with time 0.

    ``remaining`` has the number of rows under observation after each time. Undefined numbers are None.

    Args:
        counts: The numbers of censored rows and of events at each grid time.
        times: The borders of the grid.
        entries: The number of rows that come under observation at each grid time. None: all at grid time 0.
        shown: The grid times to list. None: all borders.
    """
    curve = kaplan_meier(counts, entries)
    chosen = list(range(len(times)) if shown is None else shown)
    remaining = (curve.at_risk - counts.sum(axis=-1))[chosen]
    columns = {"survival": curve.survival, "low": curve.low, "high": curve.high}
    return {
        "rows": int(counts.sum()),
        "events": int(counts[:, 1].sum()),
        "times": [0.0, *(float(times[time]) for time in chosen)],
        "remaining": [int(curve.at_risk[0]), *remaining.tolist()],
        **{name: [1.0, *map(round_finite, values[chosen])] for name, values in columns.items()},
    }


def round_finite(value: float) -> float | None:
    """Return a number with six decimals, or None if it is not defined."""
    return round(float(value), 6) if np.isfinite(value) else None


def _choose_times(counts: Int64[np.ndarray, "groups grid 2"], times: list[int], least_cell: int) -> list[int]:
    """Return the grid times of a list between which no count of a group is small; without a least cell, all."""
    if least_cell <= 1:
        return times
    reached = np.cumsum(counts, axis=1)
    shown, before = [], np.zeros(counts.shape[::2], np.int64)
    for time in times:
        since, left = reached[:, time] - before, (reached[:, -1] - reached[:, time]).sum(axis=-1)
        if since.any() and not is_small(since, least_cell) and not is_small(left, least_cell):
            shown.append(time)
            before = reached[:, time]
    return shown


def _calibrate(
    rows: CountedRows,
    survival: Float64[np.ndarray, "bins borders"],
    time: int,
    times: Sequence[float],
    least_cell: int,
) -> dict[str, Any]:
    """Compare predicted with observed risk at a grid time, in groups by predicted risk and for all rows."""
    events = int(rows.cells[:, 1].sum())
    groups = 10 if events >= _EVENTS_FOR_TENTHS and least_cell <= 1 else len(THIRDS)
    parts = []
    for number in (groups, 1):
        found = calibrate_risk(rows.cells, survival[:, time], time, number, rows.entries)
        parts.append(
            [
                {
                    "rows": int(count),
                    **dict(zip(("predicted", "observed", "low", "high"), map(round_finite, four), strict=True)),
                }
                for count, *four in zip(*vars(found).values(), strict=True)
                if count
            ]
        )
    return {"time": float(times[time]), "groups": parts[0], "all": parts[1][0]}
