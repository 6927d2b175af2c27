"""A site's own file: its rows, which of them are held out, and what a federation must know to scale them alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from problems.data.columns import Array, Encoded, standardised
from problems.data.disturb import hold_out, validation_split
from problems.data.formats.readers import read_site
from problems.data.samples import Samples, as_float32, check_finite
from problems.data.source import Rows, positive_classes
from problems.data.spec import DataError, DataSpec, in_data_set
from problems.data.validation import validate

# Means and variances over fewer rows tell of single ones.
FEWEST_ROWS = 10


@dataclass(frozen=True, eq=False)
class SiteRows:
    """The rows of one file, not yet scaled.

    Attributes:
        features: (n, *shape).
        labels: (n,) 0 or 1.
        train_rows, test_rows: places of the rows to train with and of those held out, ascending.
        label_values: those of the file that are negative, and those that are positive.
        columns: names of the features, empty where they have none.
        table: the features of a table that is to be standardised, else None.
    """

    features: NDArray[Any]
    labels: NDArray[np.int8]
    train_rows: Rows
    test_rows: Rows
    label_values: tuple[tuple[str, ...], tuple[str, ...]]
    columns: tuple[str, ...] = ()
    table: Encoded | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample's features."""
        return tuple(self.features.shape[1:])

    def class_counts(self, rows: Rows) -> tuple[int, int]:
        """The numbers of negatives and of positives among some rows."""
        positives = int(self.labels[rows].sum())
        return len(rows) - positives, positives

    def statistics(self) -> tuple[Array, Array] | None:
        """(c,) means and (c,) variances of the training rows' columns; None where nothing is standardised.

        Raises:
            DataError: the rows are so few that their means would tell of single ones.
        """
        if self.table is None:
            return None
        if len(self.train_rows) < FEWEST_ROWS:
            raise DataError(
                "training rows",
                got=len(self.train_rows),
                allowed=f"{FEWEST_ROWS} or more, since the means of fewer would tell of single ones",
                hint="bring more rows, or set standardise=false with columns that are scaled already",
            )
        return self.table.statistics(self.train_rows)

    def samples(self, rows: Rows, scaling: tuple[Array, Array] | None) -> Samples:
        """Some rows as they are trained with.

        Args:
            scaling: (c,) means and (c,) deviations of all sites' columns, where the table is standardised.

        Raises:
            DataError: features that are not finite, or a scaling that is missing or of another number of columns.
        """
        features = self.features[rows]
        if self.table is not None:
            if scaling is None or len(scaling[0]) != features.shape[1]:
                got = "no means" if scaling is None else f"means of {len(scaling[0])} columns"
                raise DataError(
                    "standardise",
                    got=got,
                    allowed=f"all sites' means of the {features.shape[1]} columns",
                    hint="set standardise=false with columns that are scaled already",
                )
            features = standardised(features, *scaling)
        check_finite(features)
        return Samples(as_float32(features), self.labels[rows])


def read_own(path: str, spec: DataSpec, partition_id: int | None) -> SiteRows:
    """Read one site's own file, or its folder of class folders.

    Of `spec` count `dataset` (the kind of file), `positive_label`, `label_column`, `feature_columns`,
    `standardise` and, where the server has no test set (`data_dir` is empty), `test_fraction`: rows of each class
    are then held out, unless the file has test rows of its own; with `validation_fraction` rows of the others are held
    out in their place. A site may hold one class only.

    Args:
        partition_id: addresses the held-out rows' draw; None for a file whose rows are all the server's to test on.

    Raises:
        DataError: when the file is missing, damaged, or its labels or columns cannot be understood alone. The
        message tells nothing of single rows: it leaves the site.
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
