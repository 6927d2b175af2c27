"""From the raw rows of a table to the features of a model, in training and ever after.

A `Preprocessing` is agreed on in training and left beside the model, as ``columns.json``. It makes the same features of
any table that has the same columns.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float32, Float64

from problems.data.cells import as_listed, days, name_cells, numbers, texts, without_markers
from problems.data.markers import Markers
from problems.data.spec import MOST_BINS, DataError

if TYPE_CHECKING:
    import pandas as pd
    from pydantic import TypeAdapter

Kind = Literal["number", "date", "boolean", "category", "other", "missing", "empty"]
Transform = Literal["none", "log", "quantile", "bin"]
Missing = Literal["error", "mean", "median", "indicator"]
Scale = Literal["standard", "quantile", "log", "range", "bins", "none"]

VERSION = 1
"""Of the form of columns.json."""
MARKS: tuple[Kind, ...] = ("category", "other", "missing")
"""Kinds of features that are 0 or 1, and neither filled nor scaled."""
MOST_DEVIATIONS = 1e6


@dataclass(frozen=True)
class Feature:
    """One feature, and how it is made of one column of the raw table.

    A cell becomes a number by ``kind``: itself, the days since 1970-01-01 (fractions for the time of the day, in UTC),
    1 for true, 1 for the category ``value`` (or, as "other", for every value that no other feature of this column has),
    1 for a missing cell. A missing cell has the number ``fill``. Then ``transform`` is applied: sign(x) log(1 + |x|),
    or the level among ``quantiles``. The feature is (x - mean) / deviation, at most 1e6 in size, and 0 if deviation is
    0; with mean 0 and deviation 1 it is x as it is. With the transform "bin" it is 1 for a number in the bin
    (low, high], else 0, and ``fill`` for a missing cell.

    Attributes:
        column: the name of the raw column.
        kind: see above; "empty" is a column without any cell, of which only other sites know more.
        value: of a category, as text; "*" for "other"; else "".
        transform, mean, deviation, fill: see above.
        quantiles: q_1 to q_K, ascending, of the levels k / (K + 1). The level of x is interpolated linearly, is clipped
            to those of q_1 and q_K, and lies in the middle where several quantiles equal x.
        low, high: bounds of a bin, None where it has none: the bins of a column make one feature each.
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
        """The number that it is made of: of a bin its column's, which all bins of it share, else the feature itself."""
        return Feature(self.column, self.kind) if self.transform == "bin" else self

    @property
    def bounds(self) -> tuple[float, float]:
        """Of a bin, infinite where it has none."""
        return -np.inf if self.low is None else self.low, np.inf if self.high is None else self.high

    def scale(self, values: Float64[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
        """Fill, transform and standardise numbers, NaN where a cell is missing."""
        if self.transform == "bin":
            low, high = self.bounds
            inside: np.ndarray = np.where(np.isnan(values), self.fill, (values > low) & (values <= high))
            return inside
        values = shape(np.where(np.isnan(values), self.fill, values), self.transform, self.quantiles)
        if self.deviation == 0.0:
            return np.zeros_like(values)
        if (self.mean, self.deviation) == (0.0, 1.0):
            return values
        # No row is so many deviations away from the mean of all rows. Without the bound a value could overflow under a
        # scaling of the server's, and the error would say so. What gradients and counts under such a scaling tell of
        # rows, the bound does not prevent: docs/security.md.
        with np.errstate(over="ignore"):
            scaled: np.ndarray = np.clip((values - self.mean) / self.deviation, -MOST_DEVIATIONS, MOST_DEVIATIONS)
        return scaled


def shape(
    values: Float64[np.ndarray, "*shape"], transform: Transform, quantiles: Sequence[float] = ()
) -> Float64[np.ndarray, "*shape"]:
    """Return numbers on the scale on which they are standardised.

    Args:
        values: the numbers; NaN stays NaN.
        transform: as of `Feature`.
        quantiles: as of `Feature`.
    """
    match transform:
        case "log":
            logarithms: np.ndarray = np.sign(values) * np.log1p(np.abs(values))
            return logarithms
        case "quantile":
            knots = np.array(quantiles)
            levels = np.arange(1, len(knots) + 1) / (len(knots) + 1)
            # From the left and from the right: where knots coincide, the mean is the middle of their levels.
            above, below = np.interp(values, knots, levels), np.interp(-values, -knots[::-1], -levels[::-1])
            middle: np.ndarray = (above - below) / 2
            return middle
    return values


@dataclass(frozen=True)
class Preprocessing:
    """How the features of a model are made of the rows of a table.

    Attributes:
        outputs: the features in the order of the model's weights, those of kind "missing" last.
        missing: what is done about missing cells, as in the run config; with "error" there must be none.
        missing_values: cells that count as missing beside empty ones; numbers are compared by value.
        column_markers: Pairs of a column's name and its further such cells.
        scale: as in the run config, of which the features' transforms, means and deviations are the outcome.
        label_column: the name of the labels' column, which `features` does not need; "" if it is not known.
        positive_labels: the values of that column that are positive, as text.
        bins: as in the run config.

    Raises:
        DataError: features that contradict themselves or each other.
    """

    outputs: tuple[Feature, ...]
    missing: Missing = "error"
    missing_values: tuple[str, ...] = ()
    scale: Scale = "standard"
    label_column: str = ""
    positive_labels: tuple[str, ...] = ()
    bins: int = 10
    column_markers: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def __post_init__(self) -> None:
        fault = next((text for text in map(_fault, self.outputs) if text), "")
        twice = [repr(name) for name, times in Counter(self.names).items() if times > 1]
        kinds = [feature.kind == "missing" for feature in self.outputs]
        if twice:
            fault = f"feature {', '.join(twice)} twice"
        elif not self.outputs or kinds != sorted(kinds) or kinds[0]:
            fault = "no features, or features of missing cells before others"
        elif not 2 <= self.bins <= MOST_BINS:
            fault = f"{self.bins} bins of a number"
        if fault:
            raise DataError("features of a table", got=fault, allowed="different ones", hint="rename or drop columns")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(feature.name for feature in self.outputs)

    @cached_property
    def inputs(self) -> tuple[Feature, ...]:
        """The numbers that features are made of: the features but those of kind "missing", and one for all bins."""
        return tuple(dict.fromkeys(feature.raw for feature in self.outputs if feature.kind != "missing"))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the raw columns that are needed, in order."""
        return tuple(dict.fromkeys(feature.column for feature in self.outputs))

    @property
    def dates(self) -> tuple[str, ...]:
        """Names of the raw columns that hold dates."""
        return tuple(feature.column for feature in self.inputs if feature.kind == "date")

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the raw columns whose cells are text, also where they look like numbers."""
        return tuple(dict.fromkeys(one.column for one in self.inputs if one.kind in ("category", "other")))

    def markers_of(self, column: str) -> tuple[str, ...]:
        """Return the cells of a raw column that count as missing in addition to empty ones."""
        return Markers(self.missing_values, self.column_markers).of(column)

    def features(self, frame: "pd.DataFrame") -> Float32[np.ndarray, "n f"]:
        """Return the features of the rows of a raw table.

        Args:
            frame: has the columns that training had, in any order; further ones are ignored. A category that training
                had not has zeros, or the feature of all others.

        Raises:
            DataError: names a column that is not there or is there twice, holds text where there were numbers or dates,
                infinite numbers, or missing cells where training had none.
        """
        return self.apply(self.encode(frame))

    def encode(self, frame: "pd.DataFrame") -> Float64[np.ndarray, "n c"]:
        """Return the numbers of `inputs`, not yet scaled; NaN where a cell is missing.

        Raises:
            DataError: as of `features`.
        """
        names = Counter(map(str, frame.columns))
        for wanted, fault in ((0, "no column"), (2, "more than one column")):
            if bad := [repr(name) for name in self.columns if min(names[name], 2) == wanted]:
                got = f"{fault} {', '.join(bad[:10])}{', ...' if len(bad) > 10 else ''}"
                raise DataError("table", got=got, allowed="one of each", hint="name columns as in training")
        values = np.empty((len(frame), len(self.inputs)))
        frame = frame.set_axis(list(map(str, frame.columns)), axis="columns")
        places: dict[str, list[int]] = {name: [] for name in self.columns}
        for place, feature in enumerate(self.inputs):
            places[feature.column].append(place)
        for name, own in places.items():
            column = without_markers(frame[name], self.markers_of(name))
            if self.missing == "error" and column.isna().any():
                got, way_out = name_cells(column.isna().to_numpy(), "missing"), "fill them, or drop their rows"
                raise DataError(f"column {name!r}", got=got, allowed="none, as in training", hint=way_out)
            values[:, own] = _numbers(column, [self.inputs[place] for place in own])
        return values

    def apply(self, values: Float64[np.ndarray, "n c"]) -> Float32[np.ndarray, "n f"]:
        """Return the features of encoded rows: `encode` gives the values."""
        with np.errstate(over="ignore"):  # whoever trains on them checks that they are finite
            return self.transform(values).astype(np.float32)

    def transform(self, values: Float64[np.ndarray, "n c"]) -> Float64[np.ndarray, "n f"]:
        """Return what `apply` does, before it is rounded."""
        places = {feature: place for place, feature in enumerate(self.inputs)}
        last = {feature.column: place for feature, place in places.items()}
        scaled = np.empty((len(values), len(self.outputs)))
        for place, feature in enumerate(self.outputs):
            if feature.kind == "missing":
                scaled[:, place] = np.isnan(values[:, last[feature.column]])
            else:
                scaled[:, place] = feature.scale(values[:, places[feature.raw]])
        return scaled

    def made_of(self, column: str) -> list[Feature]:
        """Return the features of the cells of a raw column: all of it but those of kind "missing"."""
        return [feature for feature in self.outputs if feature.column == column and feature.kind != "missing"]

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads: numbers, texts, lists and dictionaries only."""
        features = [{"name": feature.name, **asdict(feature)} for feature in self.outputs]
        return json.loads(json.dumps({"version": VERSION, **asdict(self), "outputs": features}))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, value: Any) -> "Preprocessing":
        """Return what `to_json` has made JSON of.

        Raises:
            DataError: it is of another version, or no such thing.
        """
        from pydantic import ValidationError

        version = value.get("version") if isinstance(value, dict) else None
        way_out = "take the columns.json of the run directory"
        if version != VERSION:
            raise DataError("columns.json", got=f"version {version}", allowed=f"version {VERSION}", hint=way_out)
        try:
            return _adapter().validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            got = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise DataError("columns.json", got=got, allowed="what a run has written", hint=way_out) from None

    def find_clash(self, other: "Preprocessing") -> tuple[Feature, Feature] | None:
        """Return the first two features, one of each, whose cells mean different things; None if there are none.

        A column without cells fits to all, and one of false and true to one of numbers.

        Args:
            other: with as many inputs.
        """
        for mine, theirs in zip(self.inputs, other.inputs, strict=True):
            kinds = {mine.kind, theirs.kind} - {"empty"}
            if mine.column != theirs.column or (len(kinds) > 1 and kinds != {"number", "boolean"}):
                return mine, theirs
        return None

    def join(self, other: "Preprocessing") -> "Preprocessing":
        """Return the same with the kinds that hold at two sites, each of which may have columns without cells.

        Args:
            other: of the same columns, not yet fitted and without a clash.
        """
        order: tuple[Kind, ...] = ("number", "boolean", "date", "empty")
        pairs = zip(self.inputs, other.inputs, strict=True)
        joint = [
            mine if mine.kind in MARKS else min(mine, theirs, key=lambda one: order.index(one.kind))
            for mine, theirs in pairs
        ]
        return replace(self, outputs=tuple(joint))

    def with_labels(self, positive: Sequence[str]) -> "Preprocessing":
        """Return the same with the labels that are positive."""
        return replace(self, positive_labels=tuple(positive))


def describe_text(preprocessing: Preprocessing) -> list[str]:
    """Return one line that names the columns of categories and counts their values, in a list; empty without any."""
    values = Counter(feature.column for feature in preprocessing.inputs if feature.kind == "category")
    rest = {feature.column for feature in preprocessing.inputs if feature.kind == "other"}
    if not values:
        return []
    named = [f"{name!r} ({count}{' and all others' if name in rest else ''})" for name, count in values.items()]
    return [f"columns that become categories, with the number of their values: {', '.join(named)}"]


@lru_cache(maxsize=1)
def _adapter() -> "TypeAdapter[Preprocessing]":
    from pydantic import TypeAdapter

    return TypeAdapter(Preprocessing)


def _numbers(column: "pd.Series[Any]", features: Sequence[Feature]) -> Float64[np.ndarray, "n some"]:
    """The numbers of the features of one column."""
    match features[0].kind:
        case "number":
            return numbers(column)[:, None]
        case "boolean":
            values = numbers(column)
            if (bad := ~np.isin(values, (0.0, 1.0)) & ~np.isnan(values)).any():
                got = name_cells(bad, "that are neither true nor false")
                raise DataError(
                    f"column {str(column.name)!r}", got=got, allowed="true and false", hint="mend these cells"
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
    """What a feature contradicts itself in, or ""."""
    bounds = [bound for bound in (feature.low, feature.high) if bound is not None]
    numeric = [feature.mean, feature.deviation, feature.fill, *feature.quantiles, *bounds]
    if not np.isfinite(numeric).all() or feature.deviation < 0 or list(feature.quantiles) != sorted(feature.quantiles):
        return f"{feature.name!r} with numbers that are not finite, below 0 or descending"
    if (feature.transform == "quantile") != bool(feature.quantiles):
        return f"{feature.name!r} with quantiles but for transform 'quantile'"
    if (feature.transform == "bin") != bool(bounds) or bounds != sorted(set(bounds)):
        return f"{feature.name!r} with bounds but for transform 'bin', or that do not ascend"
    if (feature.kind in ("category", "other")) != bool(feature.value):
        return f"{feature.name!r} of kind {feature.kind!r} with value {feature.value!r}"
    return ""
