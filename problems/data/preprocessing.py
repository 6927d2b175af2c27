"""Preprocessing of tables: the computation of a model's features from raw columns, in training and in scoring.

All sites of a run use the same `Preprocessing`. The run stores it with the model, as ``columns.json``, so tables that
are scored later get the same features.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float32, Float64

from problems.data.borders import Borders
from problems.data.cells import as_listed, days, name_cells, numbers, texts, without_markers
from problems.data.markers import Markers
from problems.data.outcomes import read_numbers
from problems.data.spec import MAX_BINS, DataError
from problems.errors import join_first

if TYPE_CHECKING:
    import pandas as pd
    from pydantic import TypeAdapter

Kind = Literal["number", "date", "boolean", "category", "other", "missing", "empty"]
Transform = Literal["none", "log", "quantile", "bin"]
Missing = Literal["error", "mean", "median", "indicator"]
Scale = Literal["auto", "standard", "quantile", "log", "range", "bins", "none"]
LabelType = Literal["class", "number"]

VERSION = 1
"""The version of the format of columns.json."""
MARKS: tuple[Kind, ...] = ("category", "other", "missing")
"""The kinds of features that are 0 or 1, and are neither filled nor scaled."""
MAX_DEVIATIONS = 1e6


@dataclass(frozen=True)
class Feature:
    """A feature of the model, and its computation from a column of the raw table.

    1. ``kind`` determines the number x of a cell. "number": the cell. "date": the days since 1970-01-01 (fractions for
       the time of the day, in UTC). "boolean": 1 for true. "category": 1 for the text ``value``. "other": 1 for each
       text that has no feature in this column. "missing": 1 for a missing cell.
    2. A missing cell becomes ``fill``, which is 0 for categories.
    3. ``transform`` changes x: "log" is sign(x) log(1 + |x|), "quantile" is the level of x among ``quantiles``.
    4. The feature is (x - mean) / deviation, clipped to +-1e6, and 0 if deviation is 0.

    With the transform "bin" the feature is 1 if x is in the bin (low, high], else 0, and ``fill`` for a missing cell.

    Attributes:
        column: The name of the raw column.
        kind: See above. "empty" is a column without any cell at this site.
        value: A category's value, as text; "*" for "other"; else "".
        transform, mean, deviation, fill: See above.
        quantiles: q_1 to q_K, ascending, at the levels k / (K + 1). The level of x is interpolated linearly and clipped
            to the levels of q_1 and q_K. If several quantiles equal x, it is the middle of their levels.
        low, high: The bounds of a bin, None for an open end. Each bin of a column is a separate feature.
    """

    column: str
    kind: Kind
    value: str = ""
    transform: Transform = "none"
    mean: float = 0.0
    deviation: float = 1.0
    fill: float = 0.0
    quantiles: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None

    @property
    def name(self) -> str:
        """The feature's name: ``age``, ``age (20, 30]``, ``age > 30``, ``job=baker``, ``job=*`` or ``age missing``."""
        match self.kind:
            case "category" | "other":
                return f"{self.column}={self.value}"
            case "missing":
                return f"{self.column} missing"
        if self.transform != "bin":
            return self.column
        low, high = (str(bound).removesuffix(".0") for bound in (self.low, self.high))
        if self.low is None:
            return f"{self.column} <= {high}"
        return f"{self.column} > {low}" if self.high is None else f"{self.column} ({low}, {high}]"

    @property
    def raw(self) -> "Feature":
        """The feature that stands for the number behind this feature: for a bin, the column's number; else itself."""
        return Feature(self.column, self.kind) if self.transform == "bin" else self

    @property
    def bounds(self) -> tuple[float, float]:
        """The bounds of a bin; infinite at an open end."""
        return -np.inf if self.low is None else self.low, np.inf if self.high is None else self.high

    def scale(self, values: Float64[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
        """Fill, transform and standardise numbers; a missing cell is NaN."""
        if self.transform == "bin":
            low, high = self.bounds
            inside: np.ndarray = np.where(np.isnan(values), self.fill, (values > low) & (values <= high))
            return inside
        values = shape(np.where(np.isnan(values), self.fill, values), self.transform, self.quantiles)
        if self.deviation == 0.0:
            return np.zeros_like(values)
        if (self.mean, self.deviation) == (0.0, 1.0):
            return values
        # No row is 1e6 deviations away from the mean of all rows. Without this bound, a malicious server could choose a
        # scaling with which a value overflows, and the error would reveal the value. Gradients and counts under such a
        # scaling still reveal facts about rows: docs/who-sees-what.md.
        with np.errstate(over="ignore"):
            scaled: np.ndarray = np.clip((values - self.mean) / self.deviation, -MAX_DEVIATIONS, MAX_DEVIATIONS)
        return scaled


def shape(
    values: Float64[np.ndarray, "*shape"], transform: Transform, quantiles: Sequence[float] = ()
) -> Float64[np.ndarray, "*shape"]:
    """Apply a feature's transform to numbers.

    Args:
        values: The numbers; NaN stays NaN.
        transform: See `Feature`.
        quantiles: See `Feature`.
    """
    match transform:
        case "log":
            logarithms: np.ndarray = np.sign(values) * np.log1p(np.abs(values))
            return logarithms
        case "quantile":
            knots = np.array(quantiles)
            levels = np.arange(1, len(knots) + 1) / (len(knots) + 1)
            # Interpolate from the left and from the right: at equal knots, the mean is the middle of their levels.
            above, below = np.interp(values, knots, levels), np.interp(-values, -knots[::-1], -levels[::-1])
            middle: np.ndarray = (above - below) / 2
            return middle
    return values


@dataclass(frozen=True)
class Preprocessing:
    """The recipe for a model's features from the rows of a table.

    Attributes:
        outputs: The features in the order of the model's weights, with kind "missing" last.
        missing: The treatment of missing cells, as in the run config.
        missing_values: The cells that count as missing in addition to empty cells; numbers are compared by value.
        column_markers: Pairs of a column's name and the cells that count as missing in this column only.
        scale: The scale in the run config, which determines the features' transforms, means and deviations.
        label_column: The name of the label column; "" if it is unknown. `features` does not need the labels.
        positive_labels: The positive labels, as text.
        bins: The number of bins in the run config.
        borders: Pairs of a column's name and the borders of its bins in the run config. Other columns have `bins`.
        label_type: Whether labels are classes or numbers.
        offset_column: The column whose numbers are added to each row's score; "" without offsets.
        time_column, entry_column: The columns of the times to an event; "" without times.
        time_borders: The borders of the intervals of time.

    Raises:
        DataError: A feature has contradictory entries, or two features have the same name.
    """

    outputs: tuple[Feature, ...]
    missing: Missing = "error"
    missing_values: tuple[str, ...] = ()
    scale: Scale = "standard"
    label_column: str = ""
    positive_labels: tuple[str, ...] = ()
    bins: int = 10
    column_markers: tuple[tuple[str, tuple[str, ...]], ...] = ()
    borders: Borders = ()
    label_type: LabelType = "class"
    offset_column: str = ""
    time_column: str = ""
    entry_column: str = ""
    time_borders: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        fault = next((text for text in map(_fault, self.outputs) if text), "")
        twice = [repr(name) for name, times in Counter(self.names).items() if times > 1]
        kinds = [feature.kind == "missing" for feature in self.outputs]
        if twice:
            fault = f"feature {', '.join(twice)} twice"
        elif not self.outputs or kinds != sorted(kinds) or kinds[0]:
            fault = "no features, or features of missing cells before others"
        elif not 2 <= self.bins <= MAX_BINS:
            fault = f"{self.bins} bins of a number"
        if fault:
            raise DataError(
                "features of a table", got=fault, allowed="different features", hint="rename or drop columns"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(feature.name for feature in self.outputs)

    @cached_property
    def inputs(self) -> tuple[Feature, ...]:
        """The numbers from which features are computed. Bins of a column share a number; kind "missing" has none."""
        return tuple(dict.fromkeys(feature.raw for feature in self.outputs if feature.kind != "missing"))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the raw columns that are needed, in order."""
        return tuple(dict.fromkeys(feature.column for feature in self.outputs))

    @property
    def dates(self) -> tuple[str, ...]:
        """The names of the raw columns of dates."""
        return tuple(feature.column for feature in self.inputs if feature.kind == "date")

    @property
    def words(self) -> tuple[str, ...]:
        """The names of the raw columns whose cells are text, even if they look like numbers."""
        return tuple(dict.fromkeys(feature.column for feature in self.inputs if feature.kind in ("category", "other")))

    def markers_of(self, column: str) -> tuple[str, ...]:
        """Return the cells of a raw column that count as missing in addition to empty cells."""
        return Markers(self.missing_values, self.column_markers).of(column)

    def features(self, frame: "pd.DataFrame") -> Float32[np.ndarray, "n f"]:
        """Return the features of a raw table's rows.

        A category that is not in the training rows becomes zeros, or counts as "other" if the column has this feature.

        Args:
            frame: A table with the columns of the training tables, in any order; further columns are ignored.

        Raises:
            DataError: A column is missing or occurs twice, contains text instead of numbers or dates, infinite numbers,
                or missing cells although training had none; names the column.
        """
        return self.apply(self.encode(frame))

    def offsets(self, frame: "pd.DataFrame") -> Float64[np.ndarray, "n"] | None:
        """Return the offsets of a raw table's rows; None if the model has no offset.

        Raises:
            DataError: The offset's column is missing, or has cells that are not finite numbers.
        """
        name = self.offset_column
        if not name:
            return None
        if name not in map(str, frame.columns):
            hint = "add the column, see docs/numeric-outcomes.md"
            raise DataError("table", got=f"no column {name!r}", allowed="the offset-column of the training", hint=hint)
        column = frame.set_axis(list(map(str, frame.columns)), axis="columns")[name]
        return read_numbers(without_markers(column, self.markers_of(name)))

    def encode(self, frame: "pd.DataFrame") -> Float64[np.ndarray, "n c"]:
        """Return the numbers of `inputs`, not yet scaled; NaN for a missing cell.

        Raises:
            DataError: See `features`.
        """
        names = Counter(map(str, frame.columns))
        for wanted, fault in ((0, "no column"), (2, "more than one column")):
            if bad := [repr(name) for name in self.columns if min(names[name], 2) == wanted]:
                got = f"{fault} {join_first(bad, 10)}"
                raise DataError("table", got=got, allowed="each column once", hint="rename columns as in training")
        values = np.empty((len(frame), len(self.inputs)))
        frame = frame.set_axis(list(map(str, frame.columns)), axis="columns")
        indices: dict[str, list[int]] = {name: [] for name in self.columns}
        for index, feature in enumerate(self.inputs):
            indices[feature.column].append(index)
        for name, own in indices.items():
            column = without_markers(frame[name], self.markers_of(name))
            if self.missing == "error" and column.isna().any():
                got, allowed = name_cells(column.isna().to_numpy(), "missing"), "no missing cells, as in training"
                hint = "fill the missing cells, or drop their rows"
                raise DataError(f"column {name!r}", got=got, allowed=allowed, hint=hint)
            values[:, own] = _numbers(column, [self.inputs[index] for index in own])
        return values

    def apply(self, values: Float64[np.ndarray, "n c"]) -> Float32[np.ndarray, "n f"]:
        """Return the features of rows that `encode` has encoded."""
        with np.errstate(over="ignore"):  # `check_finite` reports overflows
            return self.transform(values).astype(np.float32)

    def transform(self, values: Float64[np.ndarray, "n c"]) -> Float64[np.ndarray, "n f"]:
        """Return the features like `apply`, not rounded to float32."""
        indices = {feature: index for index, feature in enumerate(self.inputs)}
        last = {feature.column: index for feature, index in indices.items()}
        scaled = np.empty((len(values), len(self.outputs)))
        for index, feature in enumerate(self.outputs):
            if feature.kind == "missing":
                scaled[:, index] = np.isnan(values[:, last[feature.column]])
            else:
                scaled[:, index] = feature.scale(values[:, indices[feature.raw]])
        return scaled

    def made_of(self, column: str) -> list[Feature]:
        """Return the features of a raw column, without kind "missing"."""
        return [feature for feature in self.outputs if feature.column == column and feature.kind != "missing"]

    def by_column(self) -> dict[str, tuple[int, ...]]:
        """Return the indices of each raw column's features, including features of missing cells."""
        indices: dict[str, list[int]] = {name: [] for name in self.columns}
        for index, feature in enumerate(self.outputs):
            indices[feature.column].append(index)
        return {name: tuple(own) for name, own in indices.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the preprocessing as an object of numbers, texts, lists and dictionaries, for a JSON file."""
        features = [{"name": feature.name, **asdict(feature)} for feature in self.outputs]
        return json.loads(json.dumps({"version": VERSION, **asdict(self), "outputs": features}))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, value: Any) -> "Preprocessing":
        """Restore a preprocessing from the output of `to_json`.

        Raises:
            DataError: The value has another version, or is not such an output.
        """
        from pydantic import ValidationError

        version = value.get("version") if isinstance(value, dict) else None
        hint = "use the columns.json of the run directory"
        if version != VERSION:
            raise DataError("columns.json", got=f"version {version}", allowed=f"version {VERSION}", hint=hint)
        try:
            return _adapter().validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            got = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise DataError("columns.json", got=got, allowed="the columns.json of a run", hint=hint) from None

    def find_clash(self, partner: "Preprocessing") -> tuple[Feature, Feature] | None:
        """Find the first two columns that have different names or kinds at two sites; None if all columns fit.

        An empty column fits any kind, and booleans fit numbers.

        Args:
            partner: The other site's preprocessing, with the same number of inputs.
        """
        for mine, theirs in zip(self.inputs, partner.inputs, strict=True):
            kinds = {mine.kind, theirs.kind} - {"empty"}
            if mine.column != theirs.column or (len(kinds) > 1 and kinds != {"number", "boolean"}):
                return mine, theirs
        return None

    def join(self, partner: "Preprocessing") -> "Preprocessing":
        """Combine the preprocessings of two sites: a column that is empty at a site gets the other site's kind.

        Args:
            partner: The other site's preprocessing of the same columns, not yet fitted, without a clash.
        """
        order: tuple[Kind, ...] = ("number", "boolean", "date", "empty")
        pairs = zip(self.inputs, partner.inputs, strict=True)
        joint = [
            mine if mine.kind in MARKS else min(mine, theirs, key=lambda feature: order.index(feature.kind))
            for mine, theirs in pairs
        ]
        return replace(self, outputs=tuple(joint))

    def with_labels(self, positive: Sequence[str]) -> "Preprocessing":
        """Return the preprocessing with other positive labels."""
        return replace(self, positive_labels=tuple(positive))


def describe_scales(preprocessing: Preprocessing) -> list[str]:
    """Return, in a list, a line that names the columns for which scale "auto" chose quantile; empty without any."""
    scaled = [repr(feature.column) for feature in preprocessing.outputs if feature.transform == "quantile"]
    if preprocessing.scale != "auto" or not scaled:
        return []
    columns = f"{len(scaled)}: {join_first(scaled, 10)}"
    return [f"scale: auto chooses quantile for columns with long tails ({columns}), and standard for other numbers"]


def describe_text(preprocessing: Preprocessing) -> list[str]:
    """Return a line for the log that names the columns of categories, in a list; an empty list without categories."""
    values = Counter(feature.column for feature in preprocessing.inputs if feature.kind == "category")
    with_other = {feature.column for feature in preprocessing.inputs if feature.kind == "other"}
    if not values:
        return []
    columns = [f"{name!r} ({count}{' and all others' if name in with_other else ''})" for name, count in values.items()]
    return [f"columns that become categories, with the number of their values: {', '.join(columns)}"]


@lru_cache(maxsize=1)
def _adapter() -> "TypeAdapter[Preprocessing]":
    from pydantic import TypeAdapter

    return TypeAdapter(Preprocessing)


def _numbers(column: "pd.Series[Any]", features: Sequence[Feature]) -> Float64[np.ndarray, "n some"]:
    """Return the numbers of the features of one column."""
    match features[0].kind:
        case "number":
            return numbers(column)[:, None]
        case "boolean":
            values = numbers(column)
            if (bad := ~np.isin(values, (0.0, 1.0)) & ~np.isnan(values)).any():
                got = name_cells(bad, "that are neither true nor false")
                raise DataError(
                    f"column {str(column.name)!r}", got=got, allowed="true and false", hint="write true or false"
                )
            return values[:, None]
        case "date":
            return days(column)[:, None]
        case "empty":
            return np.full((len(column), 1), np.nan)
    cells, missing = texts(column)
    listed = [feature.value for feature in features if feature.kind == "category"]
    cells = as_listed(cells, listed)
    marks = [cells == feature.value if feature.kind == "category" else ~np.isin(cells, listed) for feature in features]
    return np.where(missing[:, None], np.nan, np.stack(marks, axis=1).astype(np.float64))


def _fault(feature: Feature) -> str:
    """Describe contradictory entries of a feature; "" if there are none."""
    bounds = [bound for bound in (feature.low, feature.high) if bound is not None]
    numeric = [feature.mean, feature.deviation, feature.fill, *feature.quantiles, *bounds]
    if not np.isfinite(numeric).all() or feature.deviation < 0 or list(feature.quantiles) != sorted(feature.quantiles):
        return f"{feature.name!r} with numbers that are not finite, below 0 or descending"
    if (feature.transform == "quantile") != bool(feature.quantiles):
        return f"{feature.name!r} with quantiles that do not fit transform {feature.transform!r}"
    if (feature.transform == "bin") != bool(bounds) or bounds != sorted(set(bounds)):
        return f"{feature.name!r} with bounds that do not fit transform {feature.transform!r}, or do not ascend"
    if (feature.kind in ("category", "other")) != bool(feature.value):
        return f"{feature.name!r} of kind {feature.kind!r} with value {feature.value!r}"
    return ""
