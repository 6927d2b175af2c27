"""Checks of new rows and test rows for cells that a trained model does not know, such as unknown categories."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float64, Int64

from problems.data.cells import as_listed, texts, without_markers
from problems.data.preprocessing import Preprocessing
from problems.data.spec import DataError

if TYPE_CHECKING:
    import pandas as pd

FEWEST_ROWS = 10
"""The smallest number of rows in which an empty column is reported: in fewer rows, all cells may miss by chance."""
_QUOTED, _LISTED = 3, 8

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Unseen:
    """The cells of a column that a model cannot use.

    Attributes:
        column: The name of the raw column.
        values: The different texts that the model does not know, the most frequent first.
        rows: The number of rows with an unknown text.
        cells: The number of rows whose cell is not missing.
        known: The texts that the model knows.
    """

    column: str
    values: tuple[str, ...]
    rows: int
    cells: int
    known: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the model knows none of the column's cells, and the column has any."""
        return 0 < self.rows == self.cells

    def describe(self, *, quote: bool) -> str:
        """Describe the column's unknown cells in a sentence for the log.

        Args:
            quote: Whether the sentence may quote values of the rows.
        """
        if not self.cells:
            return f"column {self.column!r}: all cells are missing"
        return f"column {self.column!r}: {self._counts(quote)}: they belong to none of its categories"

    def refusal(self, hint: str) -> DataError:
        """Return the error for a column without a known cell.

        Args:
            hint: An alternative to correcting the values, which the error suggests last.
        """
        more = f", and {len(self.known) - _LISTED} more" if len(self.known) > _LISTED else ""
        allowed = f"{', '.join(map(repr, self.known[:_LISTED]))}{more}, as in training"
        hint = f"write the values as in training, or {hint}"
        return DataError(f"column {self.column!r}", got=self._counts(True), allowed=allowed, hint=hint)

    def _counts(self, quote: bool) -> str:
        several = f"{len(self.values):,} values" if len(self.values) > 1 else "1 value"
        shown = ", ".join(map(repr, self.values[:_QUOTED])) + ", ..." * (len(self.values) > _QUOTED)
        quoted = f" ({shown})" if quote else ""
        return f"{several}{quoted} that the model does not know, in {self.rows:,} of {self.cells:,} cells"


def find_unseen(
    preprocessing: Preprocessing, frame: pd.DataFrame, base: Mapping[str, str] = MappingProxyType({})
) -> list[Unseen]:
    """Return the columns of new rows in which cells are unknown to the model, or all cells are missing.

    A column with a feature for all other values (`REST`) has no unknown cells.

    Args:
        preprocessing: The preprocessing of the training.
        frame: The rows, with all columns of the training.
        base: Raw column -> the known text that has no feature, because all features of the column are then 0.
    """
    frame = frame.set_axis(list(map(str, frame.columns)), axis="columns")
    unseen = []
    for name in preprocessing.columns:
        features = preprocessing.made_of(name)
        column = without_markers(frame[name], preprocessing.markers_of(name))
        there = column[column.notna()]
        if not len(there):
            if len(frame) >= FEWEST_ROWS and features[0].kind != "empty":
                unseen.append(Unseen(name, (), 0, 0, ()))
            continue
        if {feature.kind for feature in features} != {"category"}:
            continue
        known = (*([base[name]] if name in base else []), *(feature.value for feature in features))
        cells = as_listed(texts(there)[0], known)
        strange = Counter(cells[~np.isin(cells, known)].tolist())
        if strange:
            values = tuple(value for value, _ in strange.most_common())
            unseen.append(Unseen(name, values, strange.total(), len(there), known))
    return unseen


def check_test_rows(
    preprocessing: Preprocessing,
    values: Float64[np.ndarray, "n c"],
    train_rows: Int64[np.ndarray, train],
    test_rows: Int64[np.ndarray, test],
) -> None:
    """Warn if test rows have categories that do not occur in the training rows.

    Args:
        preprocessing: The preprocessing of the training rows.
        values: All encoded rows, from `Preprocessing.encode`.
        train_rows: The indices of the training rows.
        test_rows: The indices of the test rows.

    Raises:
        DataError: In a column, no cell of the test rows is a category of the training rows.
    """
    for name in preprocessing.columns:
        indices = [index for index, feature in enumerate(preprocessing.inputs) if feature.column == name]
        if {preprocessing.inputs[index].kind for index in indices} != {"category"}:
            continue
        bare = (values[:, indices] == 0).all(axis=1)
        if bare[train_rows].any():  # training rows also have a category without a feature
            continue
        cells = int((~np.isnan(values[test_rows, indices[0]])).sum())
        unknown = int(bare[test_rows].sum())
        if 0 < unknown == cells:
            got = f"{unknown:,} of {cells:,} cells of the test rows that are not a category of the training rows"
            hint = "spell the values the same way in both files, or add the column to drop-columns"
            raise DataError(f"column {name!r}", got=got, allowed="categories of the training rows", hint=hint)
        if unknown:
            words = "column %r: %d of %d cells of the test rows are not in a category of the training rows"
            _log.warning(words, name, unknown, cells)
