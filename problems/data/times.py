"""Times to an event: the time of each row, the grid of intervals that all sites share, and the rows' places in it.

A row is observed from its entry (0 without ``entry-column``) to its time, and its event is known to happen at this
time, or not to have happened by then (a *censored* row). The label of a row with an event is 1.

The *grid* has K intervals: up to the first border, between two borders, and after the last. An interval contains its
upper border, so with whole months as borders each month is an interval, and no time is rounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64, Int64

from problems.data.cells import name_cells
from problems.data.outcomes import read_numbers
from problems.data.quantiles import FEWEST_ROWS, cuts, merge, sketch
from problems.data.spec import TIMED, DataError, DataSpec
from problems.least_cell import hide_rare

if TYPE_CHECKING:
    import pandas as pd

MOST_INTERVALS = 200
DEFAULT_INTERVALS = 20
"""The number of intervals between quantiles, without ``time-borders``."""


@dataclass(frozen=True, eq=False)
class Periods:
    """The intervals in which rows are observed.

    Attributes:
        exits: The interval of each row's time.
        entries: The first interval in which each row is observed.
        num_intervals: K.
    """

    exits: Int64[np.ndarray, "n"]
    entries: Int64[np.ndarray, "n"]
    num_intervals: int

    def __len__(self) -> int:
        return len(self.exits)

    def __getitem__(self, rows: Any) -> "Periods":
        return Periods(self.exits[rows], self.entries[rows], self.num_intervals)

    @staticmethod
    def join(parts: "Sequence[Periods | None]") -> "Periods | None":
        """Return the intervals of several groups of rows, one group after another. None: the rows have no times.

        Args:
            parts: The intervals of each group, on the same grid.
        """
        known = [part for part in parts if part is not None]
        if not known:
            return None
        exits, entries = (np.concatenate([getattr(part, name) for part in known]) for name in ("exits", "entries"))
        return Periods(exits, entries, known[0].num_intervals)


@dataclass(frozen=True, eq=False)
class Times:
    """The times of rows, in the unit of their column.

    Attributes:
        ends: The time of the event, or of the end of observation.
        starts: The time from which the row is observed.
    """

    ends: Float64[np.ndarray, "n"]
    starts: Float64[np.ndarray, "n"]

    def __getitem__(self, rows: Any) -> "Times":
        return Times(self.ends[rows], self.starts[rows])

    def on_grid(self, borders: tuple[float, ...]) -> Periods:
        """Return the rows' intervals between borders.

        A row that enters in the middle of an interval is at risk at its upper border.

        Example:
            >>> times = Times(np.array([1.0, 1.5, 9.0]), np.array([0.0, 1.0, 0.0]))
            >>> times.on_grid((1.0, 2.0)).exits.tolist(), times.on_grid((1.0, 2.0)).entries.tolist()
            ([0, 1, 2], [0, 1, 0])
        """
        grid = np.array(borders)
        return Periods(np.searchsorted(grid, self.ends), np.searchsorted(grid, self.starts, "right"), len(grid) + 1)


def parse_time_borders(text: str) -> tuple[float, ...]:
    """Parse the value of ``time-borders``: ``6, 12, 24``, or ``1:44`` and ``0.5:10:0.5`` for equal steps.

    Args:
        text: The value. An empty text returns no borders.

    Raises:
        DataError: The borders are not finite numbers above 0 in ascending order, or are too many.

    Example:
        >>> parse_time_borders("6, 12:36:12")
        (6.0, 12.0, 24.0, 36.0)
    """
    borders = list[float]()
    try:
        for part in text.split(",") if text.strip() else []:
            first, *more = (float(word) for word in part.split(":"))
            last, step = [*more, 1.0][:2] if more else (first, 1.0)
            if len(more) > 2 or not (0 < step < np.inf and 0 < first <= last < np.inf):
                raise ValueError
            count = int((last - first) / step + 1e-9) + 1
            if count + len(borders) >= MOST_INTERVALS:
                raise ValueError
            borders += [first + step * index for index in range(count)]
        if borders != sorted(set(borders)):
            raise ValueError
    except ValueError:
        allowed = f"fewer than {MOST_INTERVALS} ascending numbers above 0, or first:last:step"
        hint = "write it like '6, 12, 24' or '1:44', see docs/survival.md"
        raise DataError("time-borders", got=repr(text), allowed=allowed, hint=hint) from None
    return tuple(borders)


def count_intervals(spec: DataSpec) -> int:
    """Return K of a run; without ``time-borders`` the largest number of intervals between quantiles."""
    borders = parse_time_borders(spec.time_borders or TIMED.get(spec.dataset, ""))
    return len(borders) + 1 if borders else DEFAULT_INTERVALS + 1


def read_times(times: "pd.Series[Any]", entries: "pd.Series[Any] | None") -> Times:
    """Return the times of a table's rows.

    Args:
        times: The column of times.
        entries: The column of entries. None: all rows are observed from 0.

    Raises:
        DataError: A cell is missing or not a number, a time is below 0, or an entry is below 0 or not before the row's
            time. The error names the column, and quotes no cell.
    """
    ends = read_numbers(times)
    starts = np.zeros(len(ends)) if entries is None else read_numbers(entries)
    checks = [(times, ends < 0, "below 0", "times of 0 or more")]
    if entries is not None:
        checks += [
            (entries, starts < 0, "below 0", "entries of 0 or more"),
            (entries, starts >= ends, "not before the time of their row", "entries before the row's time"),
        ]
    for column, bad, fault, allowed in checks:
        if bad.any():
            hint = "correct the cells, or drop their rows"
            raise DataError(f"column {str(column.name)!r}", got=name_cells(bad, fault), allowed=allowed, hint=hint)
    return Times(ends, starts)


def choose_borders(
    ends: Float64[np.ndarray, "n"], labels: Any, intervals: int = DEFAULT_INTERVALS
) -> tuple[float, ...]:
    """Return borders between which nearly equal numbers of events happen.

    Args:
        ends: The times of the training rows.
        labels: 1 for rows with an event.
        intervals: The largest number of intervals.

    Raises:
        DataError: No row has an event after time 0.
    """
    events = ends[(labels == 1) & (ends > 0)]
    if not len(events):
        got, hint = "no event after time 0 in the training rows", "check label-column and positive-label"
        raise DataError("time-column", got=got, allowed="at least one event", hint=hint)
    levels = np.arange(1, intervals + 1) / intervals
    return tuple(np.unique(np.quantile(events, levels, method="inverted_cdf")).tolist())


def sketch_events(ends: Float64[np.ndarray, "n"], labels: Any, least_cell: int = 1) -> Float64[np.ndarray, "m"]:
    """Return the quantiles of the times of events that a site reports, see `problems.data.quantiles.sketch`.

    Args:
        ends: The times of the site's training rows.
        labels: 1 for rows with an event.
        least_cell: The site's `least-cell`. Between two quantiles, and beyond the outer quantiles, lie at least as many
            events. Fewer than twice as many events have no quantile.
    """
    events = ends[labels == 1]
    return sketch(hide_rare(events, least_cell), None, least_cell) if len(events) >= 2 * least_cell else np.empty(0)


def find_sketch_fault(events: int, quantiles: Float64[np.ndarray, "m"], least_cell: int = 1) -> str:
    """Describe why a site cannot have reported these quantiles; "" if they are possible.

    Args:
        events: The number of the site's training rows with an event.
        quantiles: The site's `sketch_events`.
        least_cell: The site's `least-cell`.
    """
    expected = len(cuts(events)) if events >= 2 * least_cell else 0
    if len(quantiles) != expected:
        return f"{len(quantiles)} quantiles of the times of events instead of the {expected} that fit the count"
    if (quantiles < 0).any() or (np.diff(quantiles) < 0).any():
        return "descending quantiles of the times of events, or quantiles below 0"
    return ""


def agree_on_borders(events: Sequence[int], sketches: Sequence[Float64[np.ndarray, "_"]]) -> tuple[float, ...]:
    """Return the borders between which nearly equal numbers of all sites' events happen.

    Args:
        events: The number of training rows with an event at each site.
        sketches: The `sketch_events` of each site.

    Raises:
        DataError: No site reports a quantile above 0.
    """
    borders = np.empty(0)
    if any(map(len, sketches)):
        levels = np.arange(1, DEFAULT_INTERVALS) / DEFAULT_INTERVALS
        borders = np.unique(merge(np.array(events), sketches, levels))
    if not (borders > 0).any():
        got, least = "too few events after time 0 at every site", 2 * FEWEST_ROWS
        allowed = f"at least {least} events in the training rows of a site"
        raise DataError("time-column", got=got, allowed=allowed, hint="set time-borders, such as '6, 12, 24'")
    return tuple(borders[borders > 0].tolist())
