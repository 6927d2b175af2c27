"""The values that a raw column can have for a model, such as bins or categories, and the features of each value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float64

from problems.data.cells import as_listed, texts, without_markers
from problems.data.preprocessing import Feature, Preprocessing

if TYPE_CHECKING:
    import pandas as pd

_TRUTHS = ("false", "true")


@dataclass(frozen=True)
class Value:
    """A value of a column.

    Attributes:
        label: The value, such as ``(60, 70]``, ``baker`` or ``missing``.
        cell: The numbers in `Preprocessing.inputs` of the column, NaN for a missing cell.
        is_trained: Whether the model has a weight for the value, or the value is the category without a feature.
        low, high: The bounds of a bin; None at an open end, or if the value is not a bin.
    """

    label: str
    cell: tuple[float, ...]
    is_trained: bool = True
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class RawColumn:
    """A raw column and its features.

    Attributes:
        name: The column's name.
        recipe: The preprocessing of this column alone.
        indices: The indices of the column's features among the model's features.
        base: The text without a feature, for which all features of the column are 0. "": there is none.
    """

    name: str
    recipe: Preprocessing
    indices: tuple[int, ...]
    base: str = ""

    @property
    def feature(self) -> Feature:
        """The column's first feature, whose kind and transform determine the column's values."""
        return self.recipe.outputs[0]

    @property
    def is_text(self) -> bool:
        """Whether the column's cells are texts."""
        return self.feature.kind in ("category", "other")

    @property
    def has_indicator(self) -> bool:
        """Whether the column has a feature for missing cells."""
        return self.recipe.outputs[-1].kind == "missing"

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """The values on which the features depend; () for a number with a different feature for each cell.

        With missing cells in training the last value is a missing cell.
        """
        found = self._present()
        if not found or self.recipe.missing == "error":
            return found
        missing = Value("missing", (np.nan,) * len(self.recipe.inputs), self.has_indicator)
        return (*found, missing)

    def _present(self) -> tuple[Value, ...]:
        feature = self.feature
        if self.is_text:
            units = np.eye(len(self.recipe.inputs)).tolist()
            listed = [
                Value(one.value if one.kind == "category" else "any other value", tuple(unit))
                for one, unit in zip(self.recipe.inputs, units, strict=True)
            ]
            if any(one.kind == "other" for one in self.recipe.inputs):
                return tuple(listed)
            nothing = (0.0,) * len(units)
            base = [Value(self.base, nothing)] if self.base else []
            return (*base, *listed, Value("any other value", nothing, is_trained=False))
        if feature.transform == "bin":
            return tuple(
                Value(_label_bin(one), (_inside(one),), low=one.low, high=one.high)
                for one in self.recipe.outputs
                if one.transform == "bin"
            )
        if feature.deviation == 0.0:
            return (Value("any value", (feature.fill,)),)
        if feature.kind == "boolean":
            return tuple(Value(text, (float(truth),)) for truth, text in enumerate(_TRUTHS))
        if feature.transform == "quantile" and feature.quantiles[0] == feature.quantiles[-1]:
            middle = feature.quantiles[0]
            cells = {"<": np.nextafter(middle, -np.inf), "=": middle, ">": np.nextafter(middle, np.inf)}
            return tuple(Value(f"{sign} {write_number(middle)}", (float(cell),)) for sign, cell in cells.items())
        return ()

    def features(self, values: Sequence[Value]) -> Float64[np.ndarray, "v k"]:
        """Return the column's features for values."""
        return self.recipe.apply(np.array([value.cell for value in values])).astype(np.float64)

    def describe(self, frame: "pd.DataFrame") -> list[str]:
        """Return a text such as ``age (60, 70]``, ``age=63``, ``job=baker`` or ``age missing`` for each row.

        Args:
            frame: The rows, whose cells `Preprocessing.features` accepts.
        """
        if self.is_text or (self.feature.kind == "date" and self.feature.transform != "bin"):
            cells = without_markers(frame[self.name], self.recipe.markers_of(self.name))
            words, missing = texts(cells)
            known = [self.base, *(one.value for one in self.recipe.inputs if one.kind == "category")]
            shown = [f"{self.name}={word}" for word in as_listed(words, known).tolist()]
        else:
            numbers = self.recipe.encode(frame)[:, 0]
            missing = np.isnan(numbers)
            shown = self._describe(np.where(missing, 0.0, numbers))
        return [f"{self.name} missing" if gap else text for gap, text in zip(missing, shown, strict=True)]

    def _describe(self, numbers: Float64[np.ndarray, "n"]) -> list[str]:
        if self.feature.transform == "bin":
            bins = [one for one in self.recipe.outputs if one.transform == "bin"]
            indices = np.searchsorted([one.bounds[1] for one in bins], numbers)
            names = [f"{self.name} {_label_bin(one)}" for one in bins]
            return [names[index] for index in indices.tolist()]
        is_truth = self.feature.kind == "boolean"
        return [f"{self.name}={_TRUTHS[int(one)] if is_truth else write_number(one)}" for one in numbers.tolist()]


def split_columns(
    preprocessing: Preprocessing, base: Mapping[str, str] = MappingProxyType({})
) -> tuple[RawColumn, ...]:
    """Return the raw columns of a preprocessing, in order.

    Args:
        preprocessing: The fitted preprocessing.
        base: Raw column -> the known text that has no feature.
    """
    indices: dict[str, list[int]] = {name: [] for name in preprocessing.columns}
    for index, feature in enumerate(preprocessing.outputs):
        indices[feature.column].append(index)
    return tuple(
        RawColumn(
            name,
            replace(preprocessing, outputs=tuple(preprocessing.outputs[index] for index in own)),
            tuple(own),
            base.get(name, ""),
        )
        for name, own in indices.items()
    )


def write_number(number: float) -> str:
    """Return a number as text, without a decimal point if it is whole."""
    return str(number).removesuffix(".0")


def _label_bin(interval: Feature) -> str:
    """Return a bin as text, such as ``(60, 70]``. The bounds of dates are dates."""
    write = _write_day if interval.kind == "date" else write_number
    low, high = ("" if bound is None else write(bound) for bound in (interval.low, interval.high))
    if not (low and high):
        return f"> {low}" if low else f"<= {high}"
    return f"({low}, {high}]"


def _write_day(day: float) -> str:
    """Return a number of days since 1970-01-01 as a date, with the time of the day unless it is midnight."""
    stamp = np.datetime64(0, "s") + np.timedelta64(round(day * 86400), "s")
    return str(stamp).removesuffix("T00:00:00")


def _inside(interval: Feature) -> float:
    """Return a number in a bin."""
    low, high = interval.bounds
    return float(high) if np.isfinite(high) else float(np.nextafter(low, np.inf))
