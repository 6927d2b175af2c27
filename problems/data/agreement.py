"""Equal scaling and filling of a table's columns at all sites.

Each site reports statistics of its columns (`measure`). The server pools the statistics into the numbers by which all
sites scale columns and fill missing cells (`agree`), and each site applies these numbers (`fit`). A simulation with a
single table uses the same functions (`fit_alone`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64

from problems.data.preprocessing import MARKS, Feature, Preprocessing, Transform, shape
from problems.data.quantiles import FEWEST_ROWS, GROUPS, LEVELS, choose_borders, cuts, has_tails, merge, sketch
from problems.data.spec import AUTO, DataError
from problems.data.times import DEFAULT_INTERVALS
from problems.errors import join_first
from problems.least_cell import hide_rare, widen_gaps

_FARTHEST_FILL = 10
"""The largest distance of a fill from the mean, in deviations."""
_UNIFORM = (0.5, 12**-0.5)
"""The mean and the deviation of quantile levels, which are uniform in [0, 1]."""
_BY_LEVEL = ("quantile", "bins")
"""Scales that need quantiles."""


@dataclass(frozen=True, eq=False)
class Statistics:
    """A site's statistics of its training rows, for the c numbers in `Preprocessing.inputs`.

    Attributes:
        rows: The number of rows.
        counts: The numbers of cells that are not missing. 0: the column has too few cells to report, and is ignored.
        means, variances: The moments of these cells; of the cells' logarithms with the scale "log". 0 and 1 for 0/1
            features, 0 and 0 without cells.
        quantiles: The `sketch` of each number except 0/1 features, in one array.
    """

    rows: int
    counts: Int64[np.ndarray, "c"]
    means: Float64[np.ndarray, "c"] | None = None
    variances: Float64[np.ndarray, "c"] | None = None
    quantiles: Float64[np.ndarray, "s"] | None = None

    def find_fault(self, preprocessing: Preprocessing) -> str:
        """Describe the first entry that is impossible for a site with this preprocessing; "" if all are possible."""
        reported = (self.means, self.variances, self.quantiles)
        if [part is not None for part in reported] != list(needs(preprocessing)):
            return "other statistics than the run config needs"
        if len(self.counts) != len(preprocessing.inputs):
            return "statistics of other columns"
        if ((self.counts < 0) | (self.counts > self.rows)).any():
            return f"a count below 0 or above the {self.rows:,} training rows"
        if self.variances is not None and (self.variances < 0).any():
            return "a variance below 0"
        if self.quantiles is not None:
            expected = self._sizes(preprocessing).sum()
            if len(self.quantiles) != expected:
                return f"{len(self.quantiles)} quantiles instead of the {expected} that fit the counts"
            if any((np.diff(part) < 0).any() for part in self.sketches(preprocessing)):
                return "descending quantiles"
        return ""

    def sketches(self, preprocessing: Preprocessing) -> list[Float64[np.ndarray, "_"]]:
        """Return the `sketch` of each of the c numbers; it is empty for 0/1 features."""
        assert self.quantiles is not None
        return np.split(self.quantiles, np.cumsum(self._sizes(preprocessing))[:-1])

    def _sizes(self, preprocessing: Preprocessing) -> Int64[np.ndarray, "c"]:
        pairs = zip(preprocessing.inputs, self.counts.tolist(), strict=True)
        return np.array([0 if feature.kind in MARKS else len(cuts(count)) for feature, count in pairs], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Agreed:
    """The statistics by which all sites scale and fill their columns, for the c numbers in `Preprocessing.inputs`.

    Attributes:
        means, deviations: See `Feature`.
        fills: See `Feature`. None: missing cells are an error.
        quantiles: See `Feature`; with the scale "auto" 0 for numbers that it scales as "standard". None: no quantiles
            are needed.
        indicators: Whether each of the k raw columns has a feature for missing cells. None: no column has this
            feature.
        time_borders: The borders of the intervals of time; None without times, or if the run config sets borders.
        shares, priors: See `problems.data.findings.Findings`. None: each row has one label.
    """

    means: Float64[np.ndarray, "c"]
    deviations: Float64[np.ndarray, "c"]
    fills: Float64[np.ndarray, "c"] | None = None
    quantiles: Float64[np.ndarray, "c q"] | None = None
    indicators: Bool[np.ndarray, "k"] | None = None
    time_borders: Float64[np.ndarray, "t"] | None = None
    shares: Float64[np.ndarray, "l"] | None = None
    priors: Float64[np.ndarray, "l"] | None = None

    @staticmethod
    def identity(preprocessing: Preprocessing | None) -> "Agreed":
        """Return the numbers that leave all columns as they are. None: the data are not a table."""
        count = 0 if preprocessing is None else len(preprocessing.inputs)
        return Agreed(np.zeros(count), np.ones(count))


@dataclass(frozen=True, eq=False)
class Encoded:
    """A table's rows as numbers, and the preprocessing that turns the numbers into features.

    Attributes:
        preprocessing: The preprocessing, not yet fitted.
        values: The values of `Preprocessing.inputs` in each row; NaN for a missing cell.
    """

    preprocessing: Preprocessing
    values: Float64[np.ndarray, "n c"]

    def features(
        self, train_rows: Int64[np.ndarray, "train"], *, precise: bool = False
    ) -> tuple[Float[np.ndarray, "n f"], Preprocessing]:
        """Fit the preprocessing to the training rows; return the features of all rows, and the fitted preprocessing.

        Args:
            train_rows: The indices of the training rows.
            precise: Whether features are float64, not float32.

        Raises:
            DataError: See `agree`.
        """
        fitted = fit_alone(self.preprocessing, self.values[train_rows])
        return fitted.transform(self.values) if precise else fitted.apply(self.values), fitted


def measure(
    preprocessing: Preprocessing, values: Float64[np.ndarray, "n c"], min_cells: int = FEWEST_ROWS, least_cell: int = 1
) -> Statistics | None:
    """Return a site's statistics of its training rows; None if scaling and filling need no statistics.

    Args:
        preprocessing: The preprocessing, not yet fitted; determines how columns are scaled and missing cells filled.
        values: The rows, encoded.
        min_cells: The smallest number of a column's cells to report.
        least_cell: The site's `least-cell`, the smallest number of rows that it may reveal. A column in which fewer
            cells differ from the most frequent value counts as constant. Fewer missing cells count as this number.

    Raises:
        DataError: The variance of a column overflows; names the column.
    """
    means, deviations, quantiles = needs(preprocessing)
    if not (means or quantiles):
        return None
    features, log = preprocessing.inputs, _transform(preprocessing) == "log"
    counts = widen_gaps((~np.isnan(values)).sum(axis=0), len(values), least_cell)
    counts = np.where(counts < max(min_cells, 2 * least_cell if least_cell > 1 else 0), 0, counts)
    marks = np.array([feature.kind in MARKS for feature in features])
    moments, sketches = np.where(marks, [[0.0], [1.0]], 0.0), [np.empty(0)]
    for index in np.flatnonzero(~marks & (counts > 0)).tolist():
        cells = values[:, index][~np.isnan(values[:, index])]
        cells = hide_rare(cells, least_cell)
        sketches.append(sketch(cells, int(counts[index]), least_cell))
        moments[:, index] = _moments(shape(cells, "log") if log else cells)
        if not np.isfinite(moments[:, index]).all():
            got, column = "numbers so large that their variance is not finite", f"column {features[index].column!r}"
            hint = "divide the numbers by a constant, or set scale to log"
            raise DataError(column, got=got, allowed="numbers up to 1e150", hint=hint)
    return Statistics(
        len(values),
        counts,
        moments[0] if means else None,
        moments[1] if deviations else None,
        np.concatenate(sketches) if quantiles else None,
    )


def agree(preprocessing: Preprocessing, sites: Sequence[Statistics]) -> Agreed:
    """Pool the sites' statistics into the numbers by which all sites scale and fill.

    The result equals the statistics of the pooled rows, quantiles up to the precision of `sketch`. A constant column
    gets exactly its value as mean and exactly 0 as deviation.

    Args:
        preprocessing: The preprocessing of all sites, not yet fitted.
        sites: The statistics of each site.

    Raises:
        DataError: No site has enough cells of a column; names all such columns.
    """
    features, missing = preprocessing.inputs, preprocessing.missing
    counts = np.stack([site.counts for site in sites])  # (sites, c)
    marks = np.array([feature.kind in MARKS for feature in features])
    _refuse_empty(features, ~marks & (counts.sum(axis=0) == 0), FEWEST_ROWS if len(sites) > 1 else 1)
    needs_means, needs_deviations, needs_quantiles = needs(preprocessing)
    means, deviations = np.zeros(len(features)), np.ones(len(features))
    if needs_means:
        moments = [
            np.stack([getattr(site, name) for site in sites]) for name in ("means", "variances")[: 1 + needs_deviations]
        ]
        means, variances = _pool(counts, moments[0], moments[-1])
        deviations = np.where(marks, 1.0, np.sqrt(variances)) if needs_deviations else deviations
    quantiles = _mix(preprocessing, counts, sites) if needs_quantiles else np.zeros((len(features), len(LEVELS)))
    if missing == "median":
        fills = quantiles[:, GROUPS // 2 - 1]  # the level 1 / 2
    elif _transform(preprocessing) == "log":
        fills = np.sign(means) * np.expm1(np.abs(means))
    else:
        fills = means
    by_level = preprocessing.scale in _BY_LEVEL
    if preprocessing.scale == AUTO:
        tails = ~marks & has_tails(counts.sum(axis=0), quantiles, deviations)
        quantiles, by_level = np.where(tails[:, None], quantiles, 0.0), bool(tails.any())
        means, deviations = (np.where(tails, one, own) for one, own in zip(_UNIFORM, (means, deviations), strict=True))
    if not needs_deviations:
        level, spread = _UNIFORM if by_level else (0.0, 1.0)
        means, deviations = np.where(marks, 0.0, level), np.where(marks, 1.0, spread)
    return Agreed(
        means,
        deviations,
        None if missing == "error" else np.where(marks, 0.0, fills),
        quantiles if by_level else None,
        _gaps(preprocessing, counts, sites) if missing == "indicator" else None,
    )


def _gaps(
    preprocessing: Preprocessing, counts: Int64[np.ndarray, "sites c"], sites: Sequence[Statistics]
) -> Bool[np.ndarray, "k"]:
    """Find the raw columns in which any site has missing cells, or too few cells to report."""
    gaps = (counts < np.array([[site.rows] for site in sites])).any(axis=0)  # (c,)
    columns = {preprocessing.inputs[index].column for index in np.flatnonzero(gaps)}
    return np.array([name in columns for name in preprocessing.columns])


def _mix(
    preprocessing: Preprocessing, counts: Int64[np.ndarray, "sites c"], sites: Sequence[Statistics]
) -> Float64[np.ndarray, "c q"]:
    """Return the quantiles at `LEVELS` of all sites' cells together; 0 for 0/1 features."""
    features, sketches = preprocessing.inputs, [site.sketches(preprocessing) for site in sites]
    unknown = [not any(len(parts[index]) for parts in sketches) for index in range(len(features))]
    marks = np.array([feature.kind in MARKS for feature in features])
    if preprocessing.scale != AUTO or preprocessing.missing == "median":
        _refuse_empty(features, ~marks & np.array(unknown), 2 * FEWEST_ROWS, ", or change scale or missing")
    quantiles = np.zeros((len(features), len(LEVELS)))
    for index in np.flatnonzero(~marks & ~np.array(unknown)).tolist():
        quantiles[index] = merge(counts[:, index], [parts[index] for parts in sketches], LEVELS)
    return quantiles


def fit(preprocessing: Preprocessing, agreed: Agreed) -> Preprocessing:
    """Return a fitted preprocessing, which scales and fills by the result of `agree`.

    Raises:
        DataError: The numbers are for another number of columns, or are impossible.
    """
    features, columns = preprocessing.inputs, preprocessing.columns
    for array, wanted in ((agreed.means, features), (agreed.indicators, columns)):
        if array is not None and len(array) != len(wanted):
            got, allowed = f"numbers for {len(array)} columns", f"all sites' numbers for {len(wanted)} columns"
            raise DataError("scale", got=got, allowed=allowed, hint="install the same release at every site")
    fitted, transform = list[Feature](), _transform(preprocessing)
    quantiles, by_level = np.zeros((len(features), 0)), np.zeros(len(features), dtype=bool)
    if agreed.quantiles is not None:
        quantiles = agreed.quantiles
        by_level = np.logical_or(quantiles != 0, preprocessing.scale != AUTO).any(axis=1)
    marks = [] if agreed.indicators is None else indicators(preprocessing, agreed.indicators)
    marked = {mark.column for mark in marks}
    for index, feature in enumerate(features):
        if feature.kind in MARKS:
            fitted.append(feature)
            continue
        changed = replace(
            feature,
            transform="quantile" if by_level[index] else transform,
            mean=float(agreed.means[index]),
            deviation=float(agreed.deviations[index]),
            fill=0.0 if agreed.fills is None else float(agreed.fills[index]),
            quantiles=tuple(quantiles[index].tolist()) if by_level[index] else (),
        )
        if bins := _bins(changed, preprocessing, filled=agreed.fills is not None and feature.column not in marked):
            fitted += bins
            continue
        if agreed.fills is not None and preprocessing.scale != "none":
            _check_fill(changed)
        fitted.append(changed)
    borders = preprocessing.time_borders if agreed.time_borders is None else _checked_borders(agreed.time_borders)
    return replace(preprocessing, outputs=(*fitted, *marks), time_borders=borders)


def _checked_borders(borders: Float64[np.ndarray, "t"]) -> tuple[float, ...]:
    ascending = np.isfinite(borders).all() and (np.diff(borders, prepend=0) > 0).all()
    if not (0 < len(borders) <= DEFAULT_INTERVALS and ascending):
        got, allowed = f"{len(borders)} borders", f"1 to {DEFAULT_INTERVALS} ascending numbers above 0"
        raise DataError("time-borders", got=got, allowed=allowed, hint="set time-borders, such as '6, 12, 24'")
    return tuple(borders.tolist())


def _bins(feature: Feature, preprocessing: Preprocessing, *, filled: bool) -> list[Feature]:
    """Make the bins of a column.

    Args:
        feature: The column's feature with the scale "quantile".
        preprocessing: The preprocessing; determines whether there are bins, and their number.
        filled: Whether missing cells fall into the bin of the fill. If not, they fall into no bin.

    Returns:
        An empty list with another scale, or if nearly all cells are the same number, so there is no border.
    """
    if preprocessing.scale != "bins" or not feature.quantiles:
        return []
    borders = dict(preprocessing.borders).get(feature.column)
    if borders is None:
        borders = choose_borders(np.array(feature.quantiles), preprocessing.bins).tolist()
    bins = [
        Feature(feature.column, feature.kind, transform="bin", low=low, high=high)
        for low, high in pairwise([None, *borders, None] if borders else [])
    ]
    fill = np.array([feature.fill if filled else np.nan])
    return [replace(interval, fill=float(interval.scale(fill)[0])) for interval in bins]


def indicators(preprocessing: Preprocessing, has: Bool[np.ndarray, "k"]) -> list[Feature]:
    """Return the features of missing cells.

    Args:
        has: Whether each of the k raw columns has such a feature.
    """
    return [Feature(name, "missing") for name, marked in zip(preprocessing.columns, has, strict=True) if marked]


def fit_alone(
    preprocessing: Preprocessing, values: Float64[np.ndarray, "n c"], gaps: Bool[np.ndarray, "k"] | None = None
) -> Preprocessing:
    """Fit a preprocessing to the training rows of a single table.

    Args:
        preprocessing: The preprocessing, not yet fitted.
        values: The training rows, encoded.
        gaps: Whether each raw column has a feature for missing cells, with ``missing = "indicator"``. None: each column
            with missing cells has this feature.

    Raises:
        DataError: See `measure` and `agree`.
    """
    statistics = measure(preprocessing, values, min_cells=1)
    agreed = Agreed.identity(preprocessing) if statistics is None else agree(preprocessing, [statistics])
    if preprocessing.scale in ("range", *_BY_LEVEL):
        marks = np.array([feature.kind in MARKS for feature in preprocessing.inputs])
        low, high = np.fmin.reduce(values), np.fmax.reduce(values)
        if preprocessing.scale == "range":
            agreed = replace(agreed, means=np.where(marks, 0.0, low), deviations=np.where(marks, 1.0, high - low))
        else:
            agreed = replace(agreed, deviations=np.where(marks | (low < high), agreed.deviations, 0.0))
    if agreed.indicators is not None and gaps is not None:
        agreed = replace(agreed, indicators=gaps)
    return fit(preprocessing, agreed)


def _check_fill(feature: Feature) -> None:
    """Raise DataError for a fill that is far away from all cells.

    A mean is 0 deviations from itself, and a median at most 1. With a far fill, the few rows with a missing cell would
    dominate the gradients. The check does not stop a server that also sends false deviations: docs/who-sees-what.md.
    """
    (fill,) = shape(np.array([feature.fill]), feature.transform, feature.quantiles)
    if abs(fill - feature.mean) > _FARTHEST_FILL * feature.deviation + 1e-6 * (1 + abs(feature.mean)):
        got = f"a fill more than {_FARTHEST_FILL} deviations from the mean of column {feature.column!r}"
        allowed = "a fill within the range of the cells"
        raise DataError("missing", got=got, allowed=allowed, hint="ask the server's operator about this fill")


def _moments(cells: Float64[np.ndarray, "n"]) -> tuple[float, float]:
    if cells.max() == cells.min():  # the mean of equal numbers is not always exactly that number
        return float(cells[0]), 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        return float(cells.mean()), float(cells.var())


def _pool(
    counts: Int64[np.ndarray, "sites c"],
    means: Float64[np.ndarray, "sites c"],
    variances: Float64[np.ndarray, "sites c"],
) -> tuple[Float64[np.ndarray, "c"], Float64[np.ndarray, "c"]]:
    """Return mean and variance of the cells of all sites: m = sum w_i m_i, v = sum w_i (v_i + (m_i - m)^2).

    The result is exact for a single site, and for equal means without variance.
    """
    weights = counts / np.maximum(counts.sum(axis=0), 1)
    # subtract the mean of the largest site: the differences are exactly 0 if all sites' means are equal
    origin = np.take_along_axis(means, counts.argmax(axis=0)[None], axis=0)[0]
    mean = origin + (weights * (means - origin)).sum(axis=0)
    return mean, (weights * (variances + (means - mean) ** 2)).sum(axis=0)


def needs(preprocessing: Preprocessing) -> tuple[bool, bool, bool]:
    """Return which statistics sites must report to scale and fill the same way: means, variances, quantiles."""
    scaled = preprocessing.scale in (AUTO, "standard", "log")
    quantiles = preprocessing.scale in (AUTO, *_BY_LEVEL) or preprocessing.missing == "median"
    return scaled or preprocessing.missing in ("mean", "indicator"), scaled, quantiles


def _transform(preprocessing: Preprocessing) -> Transform:
    if preprocessing.scale in _BY_LEVEL:
        return "quantile"
    return "log" if preprocessing.scale == "log" else "none"


def _refuse_empty(
    features: Sequence[Feature], empty: Bool[np.ndarray, "c"], min_cells: int, otherwise: str = ""
) -> None:
    if empty.any():
        names = [repr(feature.column) for feature, bad in zip(features, empty, strict=True) if bad]
        which = join_first(names, 10)
        got, allowed = (
            f"{which} with fewer than {min_cells} cells that are not missing",
            f"{min_cells} cells at one site",
        )
        if min_cells == 1:
            got, allowed = f"{which} without a cell in the training rows", "columns with cells"
        hint = f"list the columns without enough cells in drop-columns{otherwise}"
        raise DataError("columns", got=got, allowed=allowed, hint=hint)
