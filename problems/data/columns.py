"""The numbers that a table's columns become, and what they are scaled by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Columns:
    """What the features of a table are, and what they were scaled by.

    Attributes:
        names: of the c columns; ``sex=f`` for the value f of a text column sex.
        means: (c,) 0 where a column is not scaled.
        deviations: (c,) 1 where a column is not scaled, 0 where it is constant.
    """

    names: tuple[str, ...]
    means: Array
    deviations: Array


@dataclass(frozen=True, eq=False)
class Encoded:
    """A table's features as numbers, not yet scaled.

    Attributes:
        values: (n, c).
        names: as of `Columns`.
        scaled: (c,) which columns to standardise.
    """

    values: Array
    names: tuple[str, ...]
    scaled: NDArray[np.bool_]

    def statistics(self, rows: Rows) -> tuple[Array, Array]:
        """(c,) means and (c,) variances over some rows; 0 and 1 for columns that are not scaled.

        A constant column has exactly its value as mean and exactly 0 as variance.
        """
        chosen = self.values[rows]
        constant = chosen.max(axis=0) == chosen.min(axis=0)
        means = np.where(constant, chosen[0], chosen.mean(axis=0))
        variances = np.where(constant, 0.0, chosen.var(axis=0))
        return np.where(self.scaled, means, 0.0), np.where(self.scaled, variances, 1.0)

    def features(self, train_rows: Rows) -> tuple[NDArray[np.float32], Columns]:
        """(n, c) values scaled by the training rows' statistics, and the scaling."""
        means, variances = self.statistics(train_rows)
        columns = Columns(self.names, means, np.sqrt(variances))
        return standardised(self.values, means, columns.deviations).astype(np.float32), columns


def standardised(values: Array, means: Array, deviations: Array) -> Array:
    """(n, c) values minus (c,) means, divided by (c,) deviations; a column whose deviation is 0 becomes 0."""
    return np.where(deviations == 0.0, 0.0, (values - means) / np.where(deviations == 0.0, 1.0, deviations))
