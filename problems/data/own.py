"""A site's own file: its rows, which of them are held out, and the statistics needed to scale all sites alike."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int8, Int64, Shaped

from problems.data.disturb import hold_out, validation_split
from problems.data.formats.readers import read_site
from problems.data.samples import (
    Encoded,
    Samples,
    as_float32,
    check_finite,
    positive_classes,
    standardise,
)
from problems.data.spec import DataError, DataSpec, in_data_set
from problems.data.validation import validate

# Means and variances over fewer rows reveal single rows.
FEWEST_ROWS = 10
_MOST_DEVIATIONS = 1e6
_UNSCALED = "set standardise=false with columns that are scaled already"


@dataclass(frozen=True, eq=False)
class SiteRows:
    """The rows of one file, not yet scaled.

    Attributes:
        features: float, or uint8 pixels.
        labels: 0 or 1.
        train_rows, test_rows: indices of the rows to train with and of those held out, ascending.
        label_values: the file's negative and its positive label values.
        columns: names of the features, empty if they have none.
        table: the features of a table that is to be standardised, else None.
    """

    features: Shaped[np.ndarray, "n *shape"]
    labels: Int8[np.ndarray, "n"]
    train_rows: Int64[np.ndarray, "train"]
    test_rows: Int64[np.ndarray, "test"]
    label_values: tuple[tuple[str, ...], tuple[str, ...]]
    columns: tuple[str, ...] = ()
    table: Encoded | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample's features."""
        return tuple(self.features.shape[1:])

    def class_counts(self, rows: Int64[np.ndarray, "some"]) -> tuple[int, int]:
        """The numbers of negatives and of positives among some rows."""
        positives = int(self.labels[rows].sum())
        return len(rows) - positives, positives

    def statistics(self) -> tuple[Float64[np.ndarray, "f"], Float64[np.ndarray, "f"]] | None:
        """The means and variances of the training rows' columns; None where nothing is standardised.

        Raises:
            DataError: the rows are so few that their means would reveal single rows.
        """
        if self.table is None:
            return None
        if len(self.train_rows) < FEWEST_ROWS:
            got = len(self.train_rows)
            allowed = f"{FEWEST_ROWS} or more, since the means of fewer would tell of single ones"
            raise DataError("training rows", got=got, allowed=allowed, hint=f"bring more rows, or {_UNSCALED}")
        return self.table.statistics(self.train_rows)

    def samples(
        self,
        rows: Int64[np.ndarray, "some"],
        scaling: tuple[Float64[np.ndarray, "f"], Float64[np.ndarray, "f"]] | None,
    ) -> Samples:
        """Some rows, scaled for training.

        Args:
            rows: their indices.
            scaling: the columns' means and deviations over all sites, if the table is standardised.

        Raises:
            DataError: features that are not finite, or a scaling that is missing or of another number of columns.
        """
        features = self.features[rows]
        if self.table is not None:
            if scaling is None or len(scaling[0]) != features.shape[1]:
                got = "no means" if scaling is None else f"means of {len(scaling[0])} columns"
                allowed = f"all sites' means of the {features.shape[1]} columns"
                raise DataError("standardise", got=got, allowed=allowed, hint=_UNSCALED)
            check_finite(features)
            # No row is so many deviations away from the mean of all rows. Without the bound a server could find out by
            # scalings of its own, under which a value does or does not overflow, what a row holds.
            with np.errstate(over="ignore"):
                features = np.clip(standardise(features, *scaling), -_MOST_DEVIATIONS, _MOST_DEVIATIONS)
        check_finite(features)
        return Samples(as_float32(features), self.labels[rows])


def read_own(path: str, spec: DataSpec, partition_id: int | None) -> SiteRows:
    """Read one site's own file, or its folder of class folders.

    If the server has no test set (`data_dir` is empty) and the file has no test rows of its own, `test_fraction` of
    each class is held out; with `validation_fraction`, rows of the training rows are held out in their place. A site
    may hold one class only.

    Args:
        path: of the file or folder.
        spec: `dataset` is the kind of file; `positive_label`, `label_column`, `feature_columns` and `standardise` are
            read too.
        partition_id: selects the random draw of the held-out rows; None: the server tests on all rows of the file.

    Raises:
        DataError: the file is missing or damaged, or its labels or columns cannot be understood without other sites.
            The message leaves the site, so it reveals no single row.
    """
    validate(spec)
    try:
        return _read_own(path, spec, partition_id)
    except DataError as error:
        raise in_data_set(error, spec) from error


def _read_own(path: str, spec: DataSpec, partition_id: int | None) -> SiteRows:
    source = read_site(Path(path).expanduser(), spec)
    train_rows, test_rows = source.own_split()
    everything = np.concatenate((train_rows, test_rows))
    marked = positive_classes(source.classes, spec.positive_label, site=True)
    labels = marked[source.codes].astype(np.int8)
    features = source.encode(everything)
    table = features if isinstance(features, Encoded) else None
    if table is not None:
        features = table.values
    if partition_id is None:
        train_rows, test_rows = everything[:0], everything
    elif not spec.data_dir and source.train_count is None:
        train_rows, test_rows = hold_out(labels, spec.test_fraction, spec.seed, partition_id)
    if spec.validation_fraction and partition_id is not None:
        train_rows, test_rows = validation_split(labels, train_rows, spec.validation_fraction, spec.seed, partition_id)
    columns = () if table is None else table.names
    negative, positive = (tuple(np.array(source.classes)[marked == side].tolist()) for side in (False, True))
    scaled = table if spec.standardise else None
    return SiteRows(features, labels, train_rows, test_rows, (negative, positive), columns, scaled)
