"""Reading of a site's own file: training rows, held-out rows, and the statistics by which all sites scale equally."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int8, Int64, Shaped

from problems.data.agreement import Agreed, Encoded, Statistics, fit, measure, needs
from problems.data.borders import coarsen
from problems.data.disturb import hold_out, validation_split
from problems.data.doubts import warn_of_rows
from problems.data.findings import Findings, find_strata
from problems.data.formats.readers import read_site
from problems.data.groups import warn_of_shared
from problems.data.image_rows import ImageRows
from problems.data.preprocessing import MARKS, Preprocessing
from problems.data.quantiles import FEWEST_ROWS
from problems.data.quoting import quote
from problems.data.samples import (
    Samples,
    as_float32,
    check_finite,
    positive_classes,
    take_float32,
    with_findings,
)
from problems.data.spec import TABLES, DataError, DataSpec, in_data_set, parse_names
from problems.data.times import Times, sketch_events
from problems.data.validation import validate
from problems.least_cell import hide_rare

_UNSCALED = 'set scale="none" with columns that are scaled already'


@dataclass(frozen=True, eq=False)
class SiteRows:
    """The rows of a site's file, not yet scaled.

    Attributes:
        features: Floats, or uint8 pixels, which are `ImageRows` if they are larger than the cache. For a table the
            encoded numbers, NaN for a missing cell.
        labels: The rows' labels: 0 or 1, or numbers.
        train_rows, test_rows: The indices of the training rows and of the test rows, ascending.
        validation_rows: The indices of the validation rows, ascending; None without validation rows.
        notes: Lines for the site's log about the reading of the rows.
        pixel_max: The pixel value in the files that became 1, for images of more than 8 bits.
        label_values: The negative labels and the positive labels that occur in the file.
        label_rows: The number of rows with each of these labels.
        subgroups: The group of each row in each column of ``subgroups``; None without them.
        preprocessing: A table's preprocessing, not yet fitted; else None.
        precise: Whether features keep 64 bits.
        offsets: The numbers of ``offset-column``; None without this column.
        numeric: Whether the labels are numbers. `label_values` is then empty, and all rows count as negatives.
        times: The times of ``time-column``; None without this column.
        findings: The findings of ``label-columns``; None with one label. All labels are then 0.
    """

    features: Shaped[np.ndarray, "n *shape"] | ImageRows
    labels: Int8[np.ndarray, "n"] | Float64[np.ndarray, "n"]
    train_rows: Int64[np.ndarray, "train"]
    test_rows: Int64[np.ndarray, "test"]
    label_values: tuple[tuple[str, ...], tuple[str, ...]]
    preprocessing: Preprocessing | None = None
    validation_rows: Int64[np.ndarray, "validation"] | None = None
    notes: tuple[str, ...] = ()
    pixel_max: float | None = None
    label_rows: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    subgroups: Int64[np.ndarray, "n c"] | None = None
    precise: bool = False
    offsets: Float64[np.ndarray, "n"] | None = None
    numeric: bool = False
    times: Times | None = None
    findings: Findings | None = None

    @property
    def has_classes(self) -> bool:
        """Whether each row has one label, which is a class."""
        return not self.numeric and self.findings is None

    @property
    def evaluated_rows(self) -> Int64[np.ndarray, "evaluated"]:
        """The rows that evaluate the model of each round: the validation rows, or the test rows if there are none."""
        return self.test_rows if self.validation_rows is None else self.validation_rows

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample's features, without a table's features for missing cells."""
        return tuple(self.features.shape[1:])

    def class_counts(self, rows: Int64[np.ndarray, "some"]) -> tuple[int, int]:
        """Return the numbers of negatives and of positives among the rows; (rows, 0) if the rows have no classes."""
        positives = 0 if self.numeric else int(self.labels[rows].sum())
        return len(rows) - positives, positives

    def statistics(self, least_cell: int = 1) -> Statistics | None:
        """Return the site's statistics of its training rows; None if scaling and filling need no statistics.

        Args:
            least_cell: The site's `least-cell`, the smallest number of rows that it may reveal.

        Raises:
            DataError: The rows are so few that their means would reveal single rows.
        """
        if self.preprocessing is None:
            return None
        statistics = measure(self.preprocessing, self.features[self.train_rows], least_cell=least_cell)
        min_rows = max(FEWEST_ROWS, 2 * least_cell if least_cell > 1 else 0)
        if statistics is not None and statistics.rows < min_rows:
            allowed = f"{min_rows} or more, since the means of fewer would reveal single rows"
            raise DataError("training rows", got=statistics.rows, allowed=allowed, hint=f"add rows, or {_UNSCALED}")
        return statistics

    def event_times(self, least_cell: int = 1) -> Float64[np.ndarray, "m"] | None:
        """Return quantiles of the times of events in the training rows; None if the run config has the borders.

        Args:
            least_cell: See `statistics`.
        """
        if self.times is None or (self.preprocessing is not None and self.preprocessing.time_borders):
            return None
        return sketch_events(self.times.ends[self.train_rows], self.labels[self.train_rows], least_cell)

    def nearly_constant(self, least_cell: int) -> list[str]:
        """Return the columns of numbers that are constant except for fewer than `least_cell` training cells.

        Args:
            least_cell: See `statistics`.
        """
        if self.preprocessing is None or not any(needs(self.preprocessing)):
            return []
        values, columns = self.features[self.train_rows], []
        for index, feature in enumerate(self.preprocessing.inputs):
            cells = values[~np.isnan(values[:, index]), index]
            if feature.kind not in MARKS and len(cells) and hide_rare(cells, least_cell) is not cells:
                columns.append(feature.column)
        return columns

    def names(self, agreed: Agreed | None) -> tuple[str, ...]:
        """Return the names of a table's features; () for other data.

        Args:
            agreed: As in `samples`.
        """
        return () if self.preprocessing is None else _fit(self.preprocessing, agreed).names

    def findings_of(self, rows: Int64[np.ndarray, "some"], least_cell: int = 1) -> Findings | None:
        """Return the findings of rows without small cells; None with one label.

        Args:
            rows: The rows' indices.
            least_cell: See `statistics`.
        """
        return None if self.findings is None else self.findings[rows].without_small_cells(least_cell)

    def samples(
        self, rows: Int64[np.ndarray, "some"], agreed: Agreed | None, min_rows: int = 1, least_cell: int = 1
    ) -> Samples:
        """Return rows as samples, scaled for training.

        Args:
            rows: The rows' indices.
            agreed: The numbers by which all sites scale and fill; None if the sites neither scale nor fill.
            min_rows: The smallest number of these rows between two borders that the run config may choose, see
                `problems.data.borders.coarsen`. 1: any number, for rows that do not train the model.
            least_cell: See `statistics`; for findings.

        Raises:
            DataError: Features are not finite, or ``agreed`` is missing or does not fit the columns or findings.
        """
        grid: tuple[float, ...] = ()
        if self.preprocessing is None:
            features = take_float32(self.features, rows, precise=self.precise)
        else:
            values = self._coarsen(self.features[rows], min_rows)
            check_finite(np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf))
            fitted = _fit(self.preprocessing, agreed)
            grid = fitted.time_borders
            features = fitted.transform(values) if self.precise else as_float32(fitted.apply(values))
        check_finite(features)
        subgroups = None if self.subgroups is None else self.subgroups[rows]
        offsets = None if self.offsets is None else self.offsets[rows]
        periods = None
        if self.times is not None:
            if not grid:
                hint = "install the same release at every site"
                raise DataError("time-borders", got="none", allowed="borders from all sites", hint=hint)
            periods = self.times[rows].on_grid(grid)
        if (findings := self.findings_of(rows, least_cell)) is not None:
            findings = findings.with_totals(*(None, None) if agreed is None else (agreed.shares, agreed.priors))
        return Samples(
            features,
            self.labels[rows],
            subgroups=subgroups,
            offsets=offsets,
            numeric=self.numeric,
            periods=periods,
            findings=findings,
        )

    def _coarsen(self, values: Float64[np.ndarray, "some c"], min_rows: int) -> Float64[np.ndarray, "some c"]:
        """Return encoded rows; in columns whose borders the run config chooses, neighbouring cells are equal."""
        assert self.preprocessing is not None
        chosen = [name for name, _ in self.preprocessing.borders]
        for index, feature in enumerate(self.preprocessing.inputs):
            if feature.column in chosen and min_rows > 1:
                values[:, index] = coarsen(values[:, index], min_rows)
        return values


def feature_columns(rows: SiteRows, agreed: Agreed | None) -> tuple[tuple[int, ...], ...]:
    """Return the indices of the features of each column of a site's table; () without a table.

    Args:
        rows: The site's rows.
        agreed: See `SiteRows.samples`.
    """
    return () if rows.preprocessing is None else tuple(_fit(rows.preprocessing, agreed).by_column().values())


def _fit(preprocessing: Preprocessing, agreed: Agreed | None) -> Preprocessing:
    if agreed is not None:
        return fit(preprocessing, agreed)
    if any(needs(preprocessing)):
        allowed = f"all sites' numbers for {len(preprocessing.inputs)} columns"
        raise DataError("scale, missing", got="none", allowed=allowed, hint=_UNSCALED)
    return preprocessing


def read_own(path: str, spec: DataSpec, partition_id: int | None) -> SiteRows:
    """Read a site's own file, or its folder of class folders, and hold out rows.

    If the server has no test set (`data_dir` is empty) and the file has no test rows, `test_fraction` of each class is
    held out. With `validation_fraction`, validation rows are held out of the training rows. A site may lack a class.

    Args:
        path: The path of the file or folder.
        spec: The options. `dataset` is the kind of file; `positive_label`, `label_column` and the keys for a table's
            columns also apply.
        partition_id: The number that selects the random draw of the held-out rows. None: the server's own file, all of
            whose rows are test rows.

    Raises:
        DataError: The file is missing or damaged, or its labels or columns have no meaning without the other sites'.
            The message is sent to the server, so it reveals no single row.
    """
    validate(spec)
    try:
        return _read_own(path, spec, partition_id)
    except DataError as error:
        raise in_data_set(error, spec) from error


def _read_own(path: str, spec: DataSpec, partition_id: int | None) -> SiteRows:
    if partition_id is None and spec.group_column and spec.dataset in TABLES:
        # all rows of the server's file are test rows, so groups do not matter, and the file may lack the column
        dropped = {*parse_names("drop-columns", spec.drop_columns), spec.group_column}
        spec = replace(spec, group_column="", drop_columns=", ".join(map(quote, sorted(dropped))))
    if partition_id is None and spec.image_column:
        spec = replace(spec, group_column="")
    source = with_findings(read_site(Path(path).expanduser(), spec), spec, site=True)
    train_rows, test_rows = source.own_split()
    everything = np.concatenate((train_rows, test_rows))
    marked = np.zeros(1, dtype=bool)  # rows without classes are divided like rows of a single class
    if source.has_classes:
        marked = positive_classes(source.classes, spec.positive_label, site=True)
    labels = marked[source.codes].astype(np.int8)
    strata = find_strata(labels, source.findings)
    encoded = source.encode(everything)
    warn_of_rows(encoded, labels, source.codes, everything)
    table = isinstance(encoded, Encoded)
    features, preprocessing = (encoded.values, encoded.preprocessing) if table else (encoded, None)
    if partition_id is None:
        train_rows, test_rows = everything[:0], everything
    elif not spec.data_dir and source.train_count is None:
        train_rows, test_rows = hold_out(strata, spec.test_fraction, spec.seed, partition_id, source.groups)
    elif source.groups is not None:
        warn_of_shared(source.groups, train_rows, test_rows)
    validation_rows = None
    if spec.validation_fraction and partition_id is not None:
        fraction = spec.validation_fraction
        train_rows, validation_rows = validation_split(
            strata, train_rows, fraction, spec.seed, partition_id, source.groups
        )
    rows = SiteRows(
        features,
        labels,
        train_rows,
        test_rows,
        ((), ()),
        preprocessing,
        validation_rows,
        source.notes,
        source.pixel_max,
        subgroups=source.subgroup_codes,
        offsets=source.offsets,
        times=source.times,
        findings=source.findings,
        precise=spec.precise,
    )
    if source.numbers is not None:
        return replace(rows, labels=source.numbers, numeric=True)
    if source.findings is not None:
        return rows
    negative, positive = (tuple(np.array(source.classes)[marked == side].tolist()) for side in (False, True))
    counts = np.bincount(source.codes, minlength=len(marked))
    rows_of = [tuple(counts[marked == side].tolist()) for side in (False, True)]
    return replace(rows, label_values=(negative, positive), label_rows=(rows_of[0], rows_of[1]))
