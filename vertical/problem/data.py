"""A labelled data set whose columns are divided among parties, for simulations. Every party has all rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from jaxtyping import Float64, Int64, Real
from scipy import sparse

from problems.data.disturb import drop_positives, flip_labels, split, split_rows, validation_split
from problems.data.formats.arrays import read_svmlight
from problems.data.formats.readers import DEFAULT_POSITIVE, read, svmlight_files
from problems.data.sample_format import SampleFormat
from problems.data.samples import Source, check_both_classes, make_source, positive_classes
from problems.data.spec import DRAWN, DataError, DataSpec, in_data_set
from problems.data.validation import validate
from problems.randomness import stream
from vertical.problem.blocks.base import Features, canonical

# the order of the columns, which are cut into nearly equal shares: random, or the data set's order
COLUMN_PARTITIONS = ("random", "consecutive")


@dataclass(frozen=True, eq=False)
class VerticalData:
    """Rows that all parties share, and the columns of each party.

    Attributes:
        train_features: The (n, d) training features, float64, dense or CSR.
        train_labels: The training labels: -1 or +1, numbers of a regression, or class indices with `multiclass`.
        test_features: The test features, in the same form.
        test_labels: The test labels, in the same form.
        rows: The data set's row numbers, from 0, of the training rows and then the test rows.
        columns: The ascending column numbers of each party. They are disjoint and contain all d columns.
        intercept: The number of the column of ones, at the first party. None without an intercept.
        classes: The names of the classes, in the order of their indices. Empty unless loaded with `multiclass`.
        samples: The negative and the positive labels. None for a regression or several classes.
    """

    train_features: Features
    train_labels: Float64[np.ndarray, "train"]
    test_features: Features
    test_labels: Float64[np.ndarray, "test"]
    rows: Int64[np.ndarray, "kept"]
    columns: tuple[Int64[np.ndarray, "_"], ...]
    intercept: int | None = None
    classes: tuple[str, ...] = ()
    samples: SampleFormat | None = None

    def party(self, party: int) -> tuple[Features, Features]:
        """Return the training and the test features of one party.

        Raises:
            DataError: The party does not exist.
        """
        if not 0 <= party < len(self.columns):
            allowed = f"0 to {len(self.columns) - 1}, the indices of {len(self.columns)} parties"
            raise DataError("party", got=party, allowed=allowed, hint="choose the index of an existing party")
        columns = self.columns[party]
        return _columns_of(self.train_features, columns), _columns_of(self.test_features, columns)


def load_vertical(
    spec: DataSpec,
    parties: int,
    *,
    partition: str = "random",
    regression: bool = False,
    multiclass: bool = False,
    intercept: bool = False,
) -> VerticalData:
    """Read a data set, split its rows in training and test rows, and divide its columns among parties.

    Rows, split, imbalance and label noise are the same as in `problems.data.load`, but the rows are in the data set's
    order. Equal arguments give equal results. Images are flattened, and uint8 pixels are divided by 255. "w8a" and
    "svmlight" stay sparse.

    Args:
        spec: The data set. `partition`, which would divide rows, must be "iid". `client_shift` and `partition_sites`
            must be 0.
        parties: The number of parties, at most the number of columns.
        partition: The way to divide the columns, an element of `COLUMN_PARTITIONS`.
        regression: Whether labels are numbers, for the problems `ridge` and `robust`. Test rows are then drawn
            independently of labels, and imbalance, label noise and a positive label are refused.
        multiclass: Whether labels are the indices of their classes, for `softmax`, with the same restrictions.
        intercept: Whether the first party also has a column of ones.

    Raises:
        DataError: An argument is wrong, the data are missing or damaged, a feature is not finite, or there are fewer
            columns than parties.
    """
    _check(spec, parties, partition, regression or multiclass)
    try:
        data = _load(spec, parties, partition, regression, multiclass)
        return _with_intercept(data) if intercept else data
    except DataError as error:
        raise in_data_set(error, spec) from error


def _load(spec: DataSpec, parties: int, partition: str, regression: bool, multiclass: bool) -> VerticalData:
    source = _read(spec)
    labels: np.ndarray
    samples = None
    if multiclass:
        labels = source.codes.astype(np.float64)
    elif regression:
        labels = _numbers(source.classes)[source.codes]
    else:
        marked = positive_classes(source.classes, spec.positive_label or DEFAULT_POSITIVE.get(spec.dataset, ""))
        labels = marked[source.codes].astype(np.int8)
        samples = SampleFormat.of(np.empty((0, 0)), source.classes, marked)
    binary = not (regression or multiclass)
    train_rows, test_rows = _split(source, labels, spec, not binary)
    features = _encode(source, train_rows)
    _check_finite(features)
    train_labels, test_labels = labels[train_rows], labels[test_rows]
    if binary:
        remaining = drop_positives(train_labels, spec.imbalance, spec.seed)
        train_rows, train_labels = (
            train_rows[remaining],
            flip_labels(train_labels[remaining], spec.label_noise, spec.seed),
        )
        train_labels, test_labels = np.where(train_labels > 0, 1.0, -1.0), np.where(test_labels > 0, 1.0, -1.0)
    return VerticalData(
        train_features=_rows_of(features, train_rows),
        train_labels=train_labels,
        test_features=_rows_of(features, test_rows),
        test_labels=test_labels,
        rows=np.concatenate((train_rows, test_rows)),
        columns=_spread(features.shape[1], parties, partition, spec.seed),
        classes=tuple(source.classes) if multiclass else (),
        samples=samples,
    )


def _with_intercept(data: VerticalData) -> VerticalData:
    """Return the same data with a column of ones, the last, at the first party."""
    number, (first, *further) = data.train_features.shape[1], data.columns
    train, test = (_with_ones(features) for features in (data.train_features, data.test_features))
    columns = (np.append(first, number), *further)
    return replace(data, train_features=train, test_features=test, columns=columns, intercept=number)


def _with_ones(features: Features) -> Features:
    ones = np.ones((features.shape[0], 1))
    if isinstance(features, np.ndarray):
        return np.hstack((features, ones))
    return canonical(sparse.hstack((features, sparse.csr_array(ones)), format="csr"))


def _check(spec: DataSpec, parties: int, partition: str, regression: bool) -> None:
    validate(spec)
    if spec.dataset in DRAWN:
        got = f"{spec.dataset!r}, which is generated separately for each client"
        allowed = "a data set with columns that can be divided among parties"
        raise DataError("dataset", got=got, allowed=allowed, hint="choose another data set, see docs/vertical.md")
    if partition not in COLUMN_PARTITIONS:
        raise DataError(
            "column partition",
            got=repr(partition),
            allowed=", ".join(COLUMN_PARTITIONS),
            hint="choose an allowed partition",
        )
    if parties < 1:
        raise DataError("number of parties", got=parties, allowed="1 or more", hint="add parties")
    shared, numbers = "all parties have all rows", "labels are numbers, or more than two classes"
    for key, value, required, why in (
        ("partition", spec.partition, "iid", shared),
        ("client-shift", spec.client_shift, 0.0, shared),
        ("partition-sites", spec.partition_sites, 0, shared),
        ("group-column", spec.group_column, "", shared),
        ("imbalance", spec.imbalance, 0.0, numbers),
        ("label-noise", spec.label_noise, 0.0, numbers),
        ("positive-label", spec.positive_label, "", numbers),
    ):
        if value != required and (regression or why == shared):
            hint = f"remove {key}, see docs/vertical.md"
            raise DataError(key, got=repr(value), allowed=f"{required!r}, since {why}", hint=hint)


def _read(spec: DataSpec) -> Source:
    if spec.dataset in ("w8a", "svmlight"):
        matrix, labels, train_count = read_svmlight(*svmlight_files(spec))
        features = canonical(matrix)
        return make_source(labels, lambda train_rows: features, train_count)
    return read(spec)


def _encode(source: Source, train_rows: Int64[np.ndarray, "train"]) -> Features:
    """Return the features of all rows, dense (n, d) float64 or CSR."""
    features = source.features(train_rows)[0]
    if not isinstance(features, np.ndarray):
        return cast(Features, features)
    scale = 255.0 if features.dtype == np.uint8 else 1.0
    return features.reshape(len(features), -1).astype(np.float64) / scale


def _numbers(classes: Sequence[str]) -> Float64[np.ndarray, "{len(classes)}"]:
    """Return the labels of a regression, as numbers."""
    try:
        numbers = np.array([float(name) for name in classes])
    except ValueError:
        names = ", ".join(classes[:20])
        raise DataError(
            "labels of a regression", got=names, allowed="numbers", hint="set vfb2.problem to a problem for classes"
        ) from None
    wrong = [name for name, number in zip(classes, numbers, strict=True) if not np.isfinite(number)]
    if wrong:
        hint = "drop the rows whose label is missing or infinite"
        raise DataError("labels of a regression", got=", ".join(wrong[:20]), allowed="finite numbers", hint=hint)
    return numbers


def _split(
    source: Source, labels: Real[np.ndarray, "n"], spec: DataSpec, regression: bool
) -> tuple[Int64[np.ndarray, "train"], Int64[np.ndarray, "test"]]:
    """Return the training rows and the test rows. In a two-class problem, both sets have both classes."""
    if source.train_count is not None:
        train_rows, test_rows = source.own_split()
    elif regression:
        train_rows, test_rows = split_rows(len(source), spec.test_fraction, spec.seed, "test split")
    else:
        train_rows, test_rows = split(labels, spec.test_fraction, spec.seed)
    if spec.validation_fraction and regression:
        if len(train_rows) < 2:
            got = f"{spec.validation_fraction!r} with {len(train_rows)} training row"
            allowed = "at least 2 training rows"
            raise DataError("validation-fraction", got=got, allowed=allowed, hint="remove validation-fraction")
        training, validation = split_rows(len(train_rows), spec.validation_fraction, spec.seed, "validation split")
        train_rows, test_rows = train_rows[training], train_rows[validation]
    elif spec.validation_fraction:
        train_rows, test_rows = validation_split(labels, train_rows, spec.validation_fraction, spec.seed)
    if not regression:
        held_out = "the validation set" if spec.validation_fraction else "the test set"
        check_both_classes(labels[train_rows], "the training set", source.classes)
        check_both_classes(labels[test_rows], held_out, source.classes)
    return train_rows, test_rows


def _spread(columns: int, parties: int, partition: str, seed: int) -> tuple[Int64[np.ndarray, "_"], ...]:
    if columns < parties:
        got = f"{columns} for {parties} parties"
        raise DataError("columns", got=got, allowed="at least one column for each party", hint="use fewer parties")
    order = stream(seed, "vertical columns").permutation(columns) if partition == "random" else np.arange(columns)
    return tuple(np.sort(part).astype(np.int64) for part in np.array_split(order, parties))


def _check_finite(features: Features) -> None:
    """Raise a DataError that names a column if features are not finite."""
    if isinstance(features, np.ndarray):
        positions: np.ndarray = np.argwhere(~np.isfinite(features))  # (u, 2) rows and columns
    else:
        entries = features.tocoo()
        positions = np.stack(entries.coords, axis=1)[~np.isfinite(entries.data)]
    if len(positions):
        row, column = positions[0] + 1
        raise DataError(
            "features",
            got=(
                f"{len(positions):,} values that are not finite, in {len(np.unique(positions[:, 1])):,} of "
                f"{features.shape[1]:,} columns, the first in row {row:,}, column {column:,}"
            ),
            allowed="finite values",
            hint="fill or drop these values",
        )


def _rows_of(features: Features, rows: Int64[np.ndarray, "some"]) -> Features:
    return features[rows] if isinstance(features, np.ndarray) else canonical(features[rows])


def _columns_of(features: Features, columns: Int64[np.ndarray, "some"]) -> Features:
    if isinstance(features, np.ndarray):
        return np.ascontiguousarray(features[:, columns])
    return canonical(features[:, columns])
