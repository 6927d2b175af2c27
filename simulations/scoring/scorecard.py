"""Scorecards: integer points for each value of a linear model's columns, whose sum is a scaled log odds.

Source: N. Siddiqi, "Credit Risk Scorecards" (2006), chapter 6: score = offset + factor * ln(odds).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.config import ConfigError
from problems.calibration import IDENTITY, Platt
from problems.data.column_values import RawColumn, Value
from problems.objectives.classification import CROSS_ENTROPY
from simulations.scoring.additive import AdditiveModel
from simulations.scoring.model import TrainedModel

POINTS = "points"  # a column of a table of scores
START = "start"
HEADER = ("column", "value", "low", "high", POINTS, "exact")
_ALLOWED = "probabilities whose log odds are linear in the score"
_REMEDY = 'train with validation-fraction=0.2 and calibration="platt"'


@dataclass(frozen=True)
class PointsScale:
    """The scale of points: score = offset + factor * ln(odds), with the odds of the negative label.

    Attributes:
        to_double: The points that double the odds.
        base_points: The score at ``base_odds``.
        base_odds: The odds of the negative against the positive label.

    Raises:
        ConfigError: A number is not finite, or odds or points that double them are not above 0.
    """

    to_double: float = 20.0
    base_points: float = 600.0
    base_odds: float = 50.0

    def __post_init__(self) -> None:
        for option, value, positive in (
            ("--points-to-double", self.to_double, True),
            ("--base-points", self.base_points, False),
            ("--base-odds", self.base_odds, True),
        ):
            if not math.isfinite(value) or (positive and value <= 0):
                allowed = "a finite number" + " above 0" * positive
                raise ConfigError(option, got=value, allowed=allowed, hint=f"set {option} to an allowed number")

    @property
    def factor(self) -> float:
        """The points of log odds 1."""
        return self.to_double / math.log(2)

    @property
    def offset(self) -> float:
        """The score at odds 1."""
        return self.base_points - self.factor * math.log(self.base_odds)

    def odds(self, points: float) -> float:
        """Return the odds of the negative label at a score."""
        return math.exp((points - self.offset) / self.factor)

    def probability(self, points: float) -> float:
        """Return the probability of the positive label at a score."""
        return 1 / (1 + self.odds(points))


@dataclass(frozen=True)
class Item:
    """A value of a column with its points.

    Attributes:
        value: The value; for a number without finitely many values, the label "each unit" or "missing".
        exact: The points before rounding.
        points: The points on the card; the same as ``exact`` for a number without finitely many values.
    """

    value: Value
    exact: float
    points: float


@dataclass(frozen=True, eq=False)
class ColumnPoints:
    """The part of a card for a raw column.

    Attributes:
        column: The column.
        items: The column's values with their points.
        origin: The part of the model's score to which 0 points belong.
        is_table: Whether the column has finitely many values, each with integer points.
    """

    column: RawColumn
    items: tuple[Item, ...]
    origin: float
    is_table: bool

    @property
    def trained(self) -> list[Item]:
        """The items of values that the training had."""
        return [item for item in self.items if item.value.is_trained]


@dataclass(frozen=True, eq=False)
class Scorecard:
    """The points of a linear model.

    A row's score is ``start`` plus the points of one value of each column. The value of a table's column that is worst
    among the values in training has 0 points. A number without finitely many values, such as a standardised number, has
    points for each unit.

    Attributes:
        model: The model as a sum over columns.
        scale: The scale of the points.
        calibration: The map from scores to log odds of the positive label.
    """

    model: AdditiveModel
    scale: PointsScale
    calibration: Platt

    @classmethod
    def of(cls, trained: TrainedModel, scale: PointsScale, command: str) -> Scorecard:
        """Return the card of a trained model.

        Args:
            trained: The model.
            scale: The scale of the points.
            command: The command or the option that needs the card, for errors.

        Raises:
            ConfigError: The model is not a sum over columns with points, or its probabilities are not known.
        """
        if trained.timed:
            hint = "use predict, which writes risk scores and survival"
            raise ConfigError(command, got="a run whose rows have times", allowed=_ALLOWED, hint=hint)
        model, calibration, loss = AdditiveModel.of(trained, command), trained.calibration, trained.config.training.loss
        if not isinstance(calibration, Platt):
            raise ConfigError(command, got="calibration 'isotonic'", allowed=_ALLOWED, hint=_REMEDY)
        if calibration == IDENTITY and loss != CROSS_ENTROPY:
            got = f"model {trained.chosen!r} of loss {loss!r} without calibration"
            raise ConfigError(command, got=got, allowed=_ALLOWED, hint=_REMEDY)
        if calibration.slope <= 0:
            got = "a model that ranked worse than chance on the validation rows"
            raise ConfigError(command, got=got, allowed="a model that ranks", hint="train a better model")
        curved = [
            column.name
            for column in model.columns
            if not column.values and column.feature.transform in ("log", "quantile")
        ]
        if curved:
            got = f"column {curved[0]!r}, whose feature is not a multiple of the number"
            allowed = "bins, or numbers with the same points for each unit"
            bins = trained.config.data.scale == "bins"
            hint = "list the column in drop-columns, since it has too few cells" if bins else "train with scale='bins'"
            raise ConfigError(command, got=got, allowed=allowed, hint=hint)
        return cls(model, scale, calibration)

    @property
    def slope(self) -> float:
        """The points of score 1 of the model, below 0."""
        return -self.scale.factor * self.calibration.slope

    @cached_property
    def blocks(self) -> tuple[ColumnPoints, ...]:
        """The columns with their points, in the order of the model's columns."""
        return tuple(map(self._block, self.model.columns))

    def _block(self, column: RawColumn) -> ColumnPoints:
        weights = self.model.weights_of(column)
        if column.values:
            parts = column.features(column.values) @ weights
            origin = max(part for part, value in zip(parts.tolist(), column.values, strict=True) if value.is_trained)
            exact = (self.slope * (parts - origin) + 0.0).tolist()  # 0.0 instead of -0.0
            items = [Item(*pair, _round(pair[1])) for pair in zip(column.values, exact, strict=True)]
            return ColumnPoints(column, tuple(items), origin, True)
        feature, weight = column.feature, float(weights[0])
        origin, unit = -weight * feature.mean / feature.deviation, self.slope * weight / feature.deviation
        items = [
            Item(Value("each day since 1970-01-01" if feature.kind == "date" else "each unit", (1.0,)), unit, unit)
        ]
        if column.recipe.missing != "error":
            missing = Value("missing", (np.nan,), column.has_indicator)
            points = self.slope * (float((column.features([missing]) @ weights)[0]) - origin)
            items.append(Item(missing, points, points))
        return ColumnPoints(column, tuple(items), origin, False)

    @cached_property
    def exact_start(self) -> float:
        """The start before rounding."""
        return self.convert(self.model.bias + sum(block.origin for block in self.blocks))

    @property
    def start(self) -> int:
        """The score of a row with 0 points in each column."""
        return _round(self.exact_start)

    def convert(self, score: float) -> float:
        """Return a score of the model in exact points."""
        return self.scale.offset + self.slope * score - self.scale.factor * self.calibration.intercept

    @cached_property
    def max_error(self) -> float:
        """The largest difference of a rounded score from the exact score, over all combinations of values."""
        low = high = self.start - self.exact_start
        for block in self.blocks:
            errors = [item.points - item.exact for item in block.items]
            low, high = low + min(errors), high + max(errors)
        unrounded = not all(block.is_table for block in self.blocks)  # then the total is rounded, too
        return max(-low, high) + 0.5 * unrounded

    @cached_property
    def span(self) -> tuple[float, float]:
        """The smallest and the largest score of values in training. Infinite if a number has points for each unit."""
        if not all(block.is_table for block in self.blocks):
            return -math.inf, math.inf
        ends = [[item.points for item in block.trained] for block in self.blocks]
        return self.start + sum(map(min, ends)), self.start + sum(map(max, ends))

    def totals(self, frame: Any, features: NDArray[np.float32], scores: NDArray[Any]) -> dict[str, NDArray[np.int64]]:
        """Return the scores of rows in points, as a column of a table.

        Args:
            frame: Not used.
            features: The rows' features (n, f).
            scores: Not used.
        """
        total = np.full(len(features), float(self.start))
        for block in self.blocks:
            parts = features[:, list(block.column.indices)].astype(np.float64) @ self.model.weights_of(block.column)
            points = self.slope * (parts - block.origin)
            total += np.rint(points.round(_DIGITS)) if block.is_table else points
        return {POINTS: np.rint(total).astype(np.int64)}

    def write_csv(self) -> str:
        """Return the card as a table with the columns `HEADER`."""
        content = io.StringIO(newline="")
        lines = csv.writer(content, lineterminator="\n")
        lines.writerow(HEADER)
        lines.writerow(["", START, "", "", self.start, repr(self.exact_start)])
        for block in self.blocks:
            for item in block.items:
                value = item.value
                bounds = ("" if bound is None else bound for bound in (value.low, value.high))
                lines.writerow([block.column.name, value.label, *bounds, item.points, repr(item.exact)])
        return content.getvalue()


_DIGITS = 6  # decimals of points before they are rounded, so the order of sums has no effect


def _round(points: float) -> int:
    return int(np.rint(round(points, _DIGITS)))


def band_edges(card: Scorecard, count: int = 18) -> Sequence[float]:
    """Return scores at equal distances that cover the card's span, ascending.

    Args:
        card: The card.
        count: The largest number of scores.
    """
    step, (low, high) = card.scale.to_double, card.span
    if math.isinf(low):
        low, high = (card.scale.base_points + sign * step * (count - 1) / 2 for sign in (-1, 1))
    while (high - low) / step > count - 1:
        step *= 2
    while (high - low) / step < 4 and step > 1:
        step /= 2
    first = math.floor(low / step)
    return [step * index for index in range(first, math.ceil(high / step) + 1)]
