"""Linear models as sums over raw columns: the contribution of each column to a score, and the reasons for a score."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from apps.config import ConfigError
from problems.data.column_values import RawColumn, split_columns
from problems.data.formats.uci import base_codes
from problems.models.networks import Linear, LinearNoIntercept
from simulations.scoring.model import TrainedModel

if TYPE_CHECKING:
    import pandas as pd

OPTION = "--reasons"
_DECIMALS = 9  # of contributions in a table
_PAGE = "see docs/scorecards.md"


@dataclass(frozen=True, eq=False)
class AdditiveModel:
    """A linear model of a table, whose score is ``constant`` plus a contribution of each raw column.

    The contribution of a column is the sum of weight * (feature - reference) over the column's features. The reference
    of a column with finitely many values (bins, categories, true and false) is the trained value with the lowest score,
    so contributions are at least 0. The reference of another number is feature 0: with the scale "standard" the mean of
    the training rows, with "log" the mean logarithm, with "quantile" the median, with "range" the minimum, and with
    "none" the number 0.

    Attributes:
        columns: The raw columns.
        weights: The (f,) weights of the model's features.
        bias: The bias; 0 if the model has none.
    """

    columns: tuple[RawColumn, ...]
    weights: NDArray[np.float64]
    bias: float

    @classmethod
    def of(cls, model: TrainedModel, command: str) -> AdditiveModel:
        """Return a trained model as a sum over columns.

        Args:
            model: The model.
            command: The command or the option that needs the sum, for errors.

        Raises:
            ConfigError: The model is not linear, or the run was not trained on a table, or has offsets.
        """
        module, name = model.network.module, model.config.run.model
        if not isinstance(module, Linear) or type(module) not in (Linear, LinearNoIntercept):
            allowed = "a linear model, since only its score is a sum over columns"
            hint = f"train with model='linear', for example with scale='bins'; {_PAGE}"
            raise ConfigError(command, got=f"a run with model {name!r}", allowed=allowed, hint=hint)
        if model.findings:
            allowed, hint = "a run with one label for each row", "train each label in a separate run"
            raise ConfigError(command, got="a run with label-columns", allowed=allowed, hint=hint)
        if model.preprocessing is None:
            allowed = "a run on a table, whose columns have names"
            raise ConfigError(command, got="a run on arrays", allowed=allowed, hint="train on a csv or parquet file")
        if offset := model.preprocessing.offset_column:
            got, allowed = f"a run with offset-column={offset!r}", "a run whose columns explain the whole score"
            raise ConfigError(command, got=got, allowed=allowed, hint="train without offset-column")
        weights = module.output.weight.detach().cpu().double().numpy()[0]
        bias = 0.0 if module.output.bias is None else float(module.output.bias.detach()[0])
        return cls(split_columns(model.preprocessing, base_codes(model.config.data.dataset)), weights, bias)

    @cached_property
    def references(self) -> NDArray[np.float64]:
        """The (c,) parts of the score that the columns' references add."""
        parts = np.zeros(len(self.columns))
        for index, column in enumerate(self.columns):
            known = [value for value in column.values if value.is_trained]
            if known:
                parts[index] = (column.features(known) @ self.weights_of(column)).min()
        return parts

    @property
    def constant(self) -> float:
        """The score of a row whose columns all have their references."""
        return self.bias + float(self.references.sum())

    def weights_of(self, column: RawColumn) -> NDArray[np.float64]:
        """Return the weights of a column's features."""
        return self.weights[list(column.indices)]

    def contributions(self, features: NDArray[np.float32], scores: NDArray[Any]) -> NDArray[np.float64]:
        """Return the contributions (n, c) of the columns to the scores of rows.

        Args:
            features: The model's features (n, f).
            scores: The (n,) scores. Their rounding to float32 is added to each row's largest contribution, so
                contributions and ``constant`` add up to the scores.
        """
        parts = np.stack(
            [features[:, list(column.indices)].astype(np.float64) @ self.weights_of(column) for column in self.columns],
            axis=1,
        )
        parts -= self.references
        rows, largest = np.arange(len(parts)), np.abs(parts).argmax(axis=1)
        parts[rows, largest] += scores.astype(np.float64) - self.constant - parts.sum(axis=1)
        return parts

    def reasons(
        self, frame: pd.DataFrame, features: NDArray[np.float32], scores: NDArray[Any], number: int
    ) -> dict[str, Any]:
        """Return the columns with the largest contributions towards the positive label, as columns of a table.

        Args:
            frame: The rows.
            features: The rows' features.
            scores: The rows' scores.
            number: The number of reasons of a row.

        Returns:
            ``reason_1``, ``contribution_1``, and so on. A reason is a column and its value, such as ``age (60, 70]``.

        Raises:
            ConfigError: The number is not from 1 to the number of columns.
        """
        if not 1 <= number <= len(self.columns):
            allowed = f"1 to {len(self.columns)}, the number of columns"
            raise ConfigError(OPTION, got=number, allowed=allowed, hint=f"set {OPTION} to an allowed number")
        parts = self.contributions(features, scores)
        order = np.argsort(-parts, axis=1, kind="stable")[:, :number]  # (n, number)
        texts = np.empty(order.shape, dtype=object)
        for index, column in enumerate(self.columns):
            chosen = order == index
            rows = np.flatnonzero(chosen.any(axis=1))
            if len(rows):
                texts[chosen] = column.describe(frame.iloc[rows])
        table: dict[str, Any] = {}
        for rank in range(number):
            table[f"reason_{rank + 1}"] = texts[:, rank]
            largest = np.take_along_axis(parts, order[:, rank : rank + 1], axis=1)[:, 0]
            table[f"contribution_{rank + 1}"] = largest.round(_DECIMALS)
        return table
