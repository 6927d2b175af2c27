"""A party's own table in a vertical run, encoded as features: scaled numbers, and a 0/1 column for each text value."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from logging import INFO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from flwr.common import log
from numpy.typing import NDArray

from apps.parties.column_use import ColumnUse
from problems.data import DataError, DataSpec
from problems.data.agreement import Encoded, fit_alone
from problems.data.dialect import Dialect
from problems.data.disturb import split_rows
from problems.data.doubts import warn_of_rows
from problems.data.formats.inspection import check_columns, numeric_column
from problems.data.formats.tables import clean, encode, read_table
from problems.data.markers import describe_hits, parse_markers
from problems.data.preprocessing import Preprocessing, describe_text
from problems.data.samples import Array, Rows, label_classes, positive_classes
from problems.data.spec import fill_in, parse_columns
from problems.data.spellings import check_spellings
from vertical.parties import KeptBlock
from vertical.problem.objectives import Objective
from vertical.segment.plan import Holding

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

# the name of the column of ones
INTERCEPT = "(intercept)"

_log = logging.getLogger(__name__)
_read_lock = threading.Lock()


def read_own(path: Path, key: str, read: Callable[[Path, int], T]) -> T:
    """Read a party's own file. In a process, one thread reads at a time.

    Args:
        path: The path of the file.
        key: The key of the node config, with the party, for errors.
        read: Function of the path and of the file's last change in nanoseconds (for caching). It reads the file.

    Raises:
        DataError: The file does not exist, or ``read`` raises the error. The error names the key.
    """
    try:
        if not path.is_file():
            hint = "set the key to the path of an existing file"
            raise DataError(repr(str(path)), got="no such file", allowed="an existing file", hint=hint)
        with _read_lock:
            return read(path, path.stat().st_mtime_ns)
    except DataError as error:
        raise DataError.of(error, key, hint=f"{error.hint}; see docs/vertical.md") from error


class UsedColumns(NamedTuple):
    """Names of the columns of a party's file that a run uses, for the owner's log.

    Attributes:
        features: The columns that are features.
        label: The column with the labels. "": no labels.
    """

    features: Sequence[str]
    label: str = ""


class _Split(NamedTuple):
    """Rows divided into training and test rows."""

    holding: Holding
    rows: Rows  # indices of the training rows
    preprocessing: Preprocessing  # fitted to the training rows


class PartyTable:
    """The rows of one party's csv or parquet file, in the order of their ids.

    The test rows depend only on the seed and the number of rows, so all parties draw the same test rows. Numeric
    columns are scaled, and missing cells filled, by statistics of the party's own training rows, which the party does
    not reveal. A text column becomes a 0/1 column for each value in the file. With the scale "bins", a numeric column
    becomes a 0/1 column for each bin between quantiles of the file.

    Attributes:
        labelled: Whether the file has the label column.
        columns: The number of features after the encoding.
        names: The names of these features.
        classes: The classes of the labels, for a problem with several classes. Otherwise ().
        block: None, since only parties that score rows have a block.
        read: The names of the file's columns that the run uses.

    Args:
        path: The path of the file.
        spec: The run's keys of the data.
        id_column: The column of the ids.
        objective: The objective, which determines the labels' form.
        intercept: Whether a party with labels has a column of ones, the last of its features.
        use: The owner's limits on the use of the columns.

    Raises:
        PolicyError: The run uses the columns in another way than the owner allows.
        DataError: A column is missing, has gaps or cannot be encoded, or two rows have the same id. The error names
            the column or the rows.
    """

    keys: Mapping[str, Any] = MappingProxyType({})
    block: KeptBlock | None = None

    def __init__(
        self,
        path: Path,
        spec: DataSpec,
        id_column: str,
        objective: Objective,
        *,
        intercept: bool = False,
        use: ColumnUse,
    ) -> None:
        requested = parse_columns(spec.feature_columns)
        words = [column.name for column in requested if column.categories]
        frame = read_table(path, [*words, id_column], Dialect.of(spec))
        ids = read_ids(path, frame, id_column)
        order = np.argsort(ids, kind="stable")
        self._ids: list[str] = ids[order].tolist()
        frame = frame.drop(columns=id_column).rename(columns=str)
        frame = frame.loc[:, frame.columns.isin(use.choose(list(frame.columns), spec))]
        frame, counting, hits = clean(frame, path, spec, site=True)
        if counting:
            _log.warning("left out column %r of %s, which has no name and counts the rows", counting[0], path)
        label_column = spec.labels_in
        self.labelled = label_column in frame.columns
        self._labels: Array | None = None
        self._question, self._sides = "", None
        self.classes: tuple[str, ...] = ()
        if self.labelled:
            column = frame.pop(label_column).iloc[order]
            if objective.classification:
                check_spellings(column.to_numpy())
            if objective.multiclass:
                self.classes, codes = label_classes(column.to_numpy())
                self._labels = codes.astype(np.float64)
            elif objective.classification:
                classes, codes = label_classes(column.to_numpy())
                positive = positive_classes(classes, spec.positive_label, private=True)
                self._labels = np.where(positive[codes], 1.0, -1.0)
                if not spec.positive_label:
                    text = "labels: %r is positive at this party, the last in order, since positive-label is empty"
                    log(INFO, text, classes[-1])
                self._question, self._sides = _class_sides(label_column, classes, positive, codes)
            else:
                self._labels = numeric_column(column)
        # feature-columns lists the columns of all parties
        columns = [column for column in fill_in(requested, frame.columns) if column.name in frame.columns]
        if not columns:
            got, hint = "no column except id and label", "add columns of features to the file"
            if spec.feature_columns or spec.drop_columns:
                got = "no column except id and label, after feature-columns and drop-columns"
                hint = "add a column of this party to feature-columns, or remove it from drop-columns"
            raise DataError(path, got=got, allowed="at least one column of features", hint=hint)
        check_columns(frame, columns, spec, private=True)
        encoded = encode(frame, columns, np.arange(len(frame)), spec)
        hit_lines = describe_hits(parse_markers(spec.missing_values), hits, len(frame))
        for note in (*hit_lines, *describe_text(encoded.preprocessing)):
            log(INFO, "%s: %s", path, note)
        self._preprocessing, self._values = encoded.preprocessing, encoded.values[order]
        self.read = UsedColumns(tuple(column.name for column in columns), label_column if self.labelled else "")
        self._use = use
        if self._sides is not None:
            sides = self._sides.astype(np.int8)
            warn_of_rows(Encoded(self._preprocessing, self._values), sides, self._sides, np.arange(len(sides)))
        self._intercept = intercept and self.labelled
        self._test_fraction, self._validation_fraction = spec.test_fraction, spec.validation_fraction
        self._seed = spec.seed
        self._splits: dict[bytes | None, _Split] = {}
        gaps = {feature.column for feature in self._preprocessing.inputs} & set(frame.columns[frame.isna().any()])
        self._gaps = np.array([name in gaps for name in self._preprocessing.columns])
        # The party reports its number of features before it knows the training rows, so bins are fitted to all rows.
        self._whole = self._fit(np.arange(len(self._values)))
        self.names = [*self._whole.names, *([INTERCEPT] if self._intercept else [])]
        raw = [self._preprocessing.columns.index(feature.column) for feature in self._whole.outputs]
        self._groups = np.array([*raw, *([-1] if self._intercept else [])])
        self.columns = len(self.names)

    def ids(self, rows: Rows | None) -> Sequence[str]:
        return self._ids if rows is None else [self._ids[row] for row in rows]

    def holding(self, rows: Rows | None) -> Holding:
        return self._split(rows).holding

    def preprocessing(self, rows: Rows | None) -> Preprocessing:
        return self._split(rows).preprocessing

    def training_marks(self, rows: Rows | None) -> Sequence[str] | None:
        """Return a text for each training row that identifies the row's label: a hash, the label's set, and the id.

        The hash is of the label column and of the two sets of classes. See `FlipMemory`, which stores flips by mark.

        Returns:
            The texts, which do not depend on which set is positive. None for a regression or without labels.
        """
        if self._sides is None:
            return None
        return [f"{self._question} {self._sides[row]} {self._ids[row]}" for row in self._split(rows).rows]

    def _split(self, rows: Rows | None) -> _Split:
        key = None if rows is None else rows.tobytes()
        if key not in self._splits:
            self._splits = {key: self._cut(np.arange(len(self._values)) if rows is None else rows)}
        return self._splits[key]

    def _cut(self, rows: Rows) -> _Split:
        train, test = split_rows(len(rows), self._test_fraction, self._seed, "vertical split")
        if self._validation_fraction:
            kept_rows, validation_rows = split_rows(
                len(train), self._validation_fraction, self._seed, "vertical validation split"
            )
            train, test = train[kept_rows], train[validation_rows]
        fitted = self._whole if self._whole.scale == "bins" else self._fit(rows[train])
        constant = [feature.name for feature in fitted.inputs if feature.deviation == 0.0]
        if constant:
            _log.warning("columns without effect, with the same number in all training rows: %s", ", ".join(constant))
        features = encode_rows(fitted, self._values[rows], intercept=self._intercept)
        self._use.check_varying(features[train], self._groups)
        labels = () if self._labels is None else (self._labels[rows[train]], self._labels[rows[test]])
        return _Split(Holding(features[train], features[test], *labels, groups=self._groups), rows[train], fitted)

    def _fit(self, rows: Rows) -> Preprocessing:
        return fit_alone(self._preprocessing, self._values[rows], self._gaps)


def encode_rows(preprocessing: Preprocessing, values: Array, *, intercept: bool) -> Array:
    """Return the features (n, d) of encoded rows. With an intercept, the last column is ones."""
    features = preprocessing.transform(values)
    return np.column_stack((features, np.ones(len(features)))) if intercept else features


def read_ids(path: Path, frame: pd.DataFrame, column: str) -> NDArray[np.str_]:
    """Return the ids (rows,).

    Args:
        path: The file, for errors.
        frame: The file's table. `read_table` has read the column of ids as text: "007" is not "7".
        column: The column of ids.

    Raises:
        DataError: The column does not exist, or ids are missing or occur twice.
    """
    if column not in frame.columns:
        known = ", ".join(map(str, frame.columns[:20]))
        raise DataError(
            path,
            got=f"no column {column!r}",
            allowed=f"the columns {known}",
            hint="set vfb2.id-column to a column of the file",
        )
    cells = frame[column]
    source, missing = f"{path}, column {column!r}", int(cells.isna().sum())
    if missing:
        got = f"{missing:,} of {len(cells):,} ids missing"
        raise DataError(source, got=got, allowed="an id in every row", hint="fill the ids, or drop these rows")
    ids = cells.astype(str).to_numpy(dtype=object).astype(str)
    values, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        first, second = (np.flatnonzero(ids == values[counts > 1][0])[:2] + 1).tolist()
        # The server sees the error, so it names rows by number and not by id.
        got = f"{int((counts > 1).sum()):,} ids more than once, such as in rows {first} and {second}"
        raise DataError(source, got=got, allowed="each id once", hint="drop the repeated rows")
    return ids


def _class_sides(
    label_column: str, classes: Sequence[str], positive: NDArray[np.bool_], codes: NDArray[np.int64]
) -> tuple[str, NDArray[np.int64]]:
    """Return a hash of the two sets of classes in a label column, and the set of each row (rows,), 0 or 1."""
    sets = [[name for name, side in zip(classes, positive, strict=True) if side == wanted] for wanted in (False, True)]
    question = json.dumps([label_column, *sorted(sets)])
    sides = positive.astype(np.int64)[codes]
    return hashlib.sha256(question.encode()).hexdigest()[:16], sides if sets[0] < sets[1] else 1 - sides
