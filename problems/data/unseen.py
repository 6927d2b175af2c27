"""Cells of new rows that a trained model cannot use: categories missing from training, and columns without a cell."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float64

from problems.data.cells import as_listed, texts, without_markers
from problems.data.preprocessing import Preprocessing
from problems.data.spec import DataError

if TYPE_CHECKING:
    import pandas as pd

FEWEST_ROWS = 10
"""Fewest rows in which a column without any cell is reported: in few rows all cells may be missing by chance."""
_QUOTED, _LISTED = 3, 8

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Unseen:
    """The cells of a column that a model cannot use.

    Attributes:
        column: The name of the raw column.
        values: The different texts that the model does not know, the most frequent first.
        rows: The number of rows with such a text.
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
        """Whether the column has cells, but no known cell."""
        return 0 < self.rows == self.cells

    def describe(self, *, quote: bool) -> str:
        """Return a sentence for a log.

        Args:
            quote: Whether the sentence may quote values of the rows.
        """
        if not self.cells:
            return f"column {self.column!r}: all cells are missing"
        return f"column {self.column!r}: {self._counts(quote)}: they belong to none of its categories"

    def refusal(self, hint: str) -> DataError:
        """Return an error about a column without a known cell.

        Args:
            hint: The way to score the rows nevertheless.
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
    """Return the columns of new rows with cells that the model cannot use.

    Args:
        preprocessing: The preprocessing of the training. A column with a feature for all other values has none.
        frame: The rows, with all columns of the training.
        base: Raw column -> the known text that has no feature, in data sets with such columns.
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


def check_test_rows(preprocessing: Preprocessing, values: Float64[np.ndarray, "n c"], train_count: int) -> None:
    """Warn of categories in the encoded rows of a test file that do not occur in the training rows.

    Args:
        preprocessing: The preprocessing of the training rows.
        values: All encoded rows, from `Preprocessing.encode`.
        train_count: The number of training rows, which come first.

    Raises:
        DataError: No cell of a column is a category of the training rows.
    """
    for name in preprocessing.columns:
        indices = [index for index, feature in enumerate(preprocessing.inputs) if feature.column == name]
        if {preprocessing.inputs[index].kind for index in indices} != {"category"}:
            continue
        bare = (values[:, indices] == 0).all(axis=1)
        if bare[:train_count].any():  # a code without a feature occurs in training
            continue
        cells = int((~np.isnan(values[train_count:, indices[0]])).sum())
        unknown = int(bare[train_count:].sum())
        if 0 < unknown == cells:
            got = f"{unknown:,} of {cells:,} cells of the test rows that are not a category of the training rows"
            hint = "spell the values the same way in both files, or list the column in drop-columns"
            raise DataError(f"column {name!r}", got=got, allowed="categories of the training rows", hint=hint)
        if unknown:
            words = "column %r: %d of %d cells of the test rows are not in a category of the training rows"
            _log.warning(words, name, unknown, cells)
