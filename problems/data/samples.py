"""Samples with labels 0 and 1, as the algorithms use them, and the rows of a data set from which they are made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int8, Int64, Shaped
from numpy.typing import NDArray

from problems.data.agreement import Encoded
from problems.data.cells import as_text, is_number
from problems.data.findings import Findings, make_findings, mark_classes
from problems.data.image_rows import ImageRows
from problems.data.mapped import allocate, slices
from problems.data.preprocessing import Preprocessing
from problems.data.spec import DataError, DataSpec
from problems.data.spellings import check_spellings
from problems.data.subgroups import Subgroups, read_subgroups
from problems.data.times import Periods, Times
from problems.data.unseen import check_test_rows
from problems.errors import NOTHING, join_first

if TYPE_CHECKING:
    import pandas as pd

Rows = NDArray[np.int64]
Array = NDArray[np.float64]
Encoder = Callable[[Int64[np.ndarray, "train"]], Any]


@dataclass(frozen=True, eq=False)
class Source:
    """All rows of a data set, as a reader returns them. If the data set has its own test split, test rows come last."""

    classes: tuple[str, ...]
    """The original labels as text, sorted; by value if all are numbers."""
    codes: Int64[np.ndarray, "n"]
    """Each row's index into `classes`."""
    encode: Encoder
    """A function of the training rows' indices that returns all rows: features (n, *shape), float or uint8 pixels; for
    a table, its `Encoded` rows; for a table that is already scaled, the features and their `Preprocessing`. It
    computes any statistics from the training rows alone."""
    train_count: int | None = None
    """The number of rows before the data set's own test split; None without a split."""
    sites: Int64[np.ndarray, "n"] | None = None
    """The number of each row's site; None without sites."""
    notes: tuple[str, ...] = ()
    """Lines for the log about the reading of the rows."""
    groups: Int64[np.ndarray, "n"] | None = None
    """The number of each row's group; the rows of a group stay together. None: rows are independent."""
    pixel_max: float | None = None
    """The pixel value in the files that became 1, for images of more than 8 bits."""
    site_names: tuple[str, ...] = ()
    """The names of the sites, by number; () if they have no names."""
    site_values: tuple[str, ...] = ()
    """The values of ``site-column``, by the number of the site; () without this column."""
    subgroups: tuple[Subgroups, ...] = ()
    """The columns of ``subgroups``."""
    subgroup_codes: Int64[np.ndarray, "n c"] | None = None
    """The group of each row in each of these columns; None without ``subgroups``."""
    numbers: Float64[np.ndarray, "n"] | None = None
    """The labels if they are numbers. `classes` is then empty, and all `codes` are 0. None: labels are classes."""
    offsets: Float64[np.ndarray, "n"] | None = None
    """The numbers of ``offset-column``; None without this column."""
    times: Times | None = None
    """The times of ``time-column``; None without this column."""
    findings: Findings | None = None
    """The findings of ``label-columns``. `classes` is then empty, and all `codes` are 0. None: rows have one label."""
    matrix: Shaped[np.ndarray, "n findings"] | None = None
    """The numbers of several labels for each row, of which `with_findings` makes `findings`."""

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def has_classes(self) -> bool:
        """Whether rows are divided by their class: not if labels are numbers, or if rows have several labels."""
        return self.numbers is None and self.findings is None

    @property
    def site_keys(self) -> tuple[str, ...]:
        """The texts that select sites in ``test-sites``: values of ``site-column``, names, or else numbers."""
        numbers = () if self.sites is None else tuple(map(str, range(int(self.sites.max()) + 1)))
        return self.site_values or self.site_names or numbers

    def features(
        self,
        train_rows: Int64[np.ndarray, "train"],
        check: Callable[[Any], None] = lambda encoded: None,
        test_rows: Int64[np.ndarray, "test"] | None = None,
        *,
        precise: bool = False,
    ) -> tuple[Any, Preprocessing | None]:
        """Return the features of all rows, and a table's `Preprocessing`, fitted to the training rows (else None).

        Args:
            train_rows: The indices of the training rows.
            check: A function that is called with the result of `encode`, before scaling.
            test_rows: The indices of the test rows if `train_rows` are all other rows. None: the data set's own split.
            precise: Whether a table's features are float64, not float32.
        """
        encoded = self.encode(train_rows)
        check(encoded)
        if isinstance(encoded, Encoded):
            compared, tested = self.own_split() if test_rows is None else (train_rows, test_rows)
            if len(tested):
                check_test_rows(encoded.preprocessing, encoded.values, compared, tested)
            return encoded.features(train_rows, precise=precise)
        return encoded if isinstance(encoded, tuple) else (encoded, None)

    def own_split(self) -> tuple[Int64[np.ndarray, "train"], Int64[np.ndarray, "test"]]:
        """Return the training and test rows of the data set's own split; without a split, all rows are for training."""
        train_count = len(self) if self.train_count is None else self.train_count
        return np.arange(train_count), np.arange(train_count, len(self))


def add_subgroups(source: Source, spec: DataSpec | None, frames: "Sequence[pd.DataFrame]") -> Source:
    """Add the groups of ``subgroups`` to the rows of tables.

    Args:
        source: The rows.
        spec: The options of the data.
        frames: The tables, as in `read_subgroups`.

    Raises:
        DataError: See `read_subgroups`.
    """
    if spec is None or not spec.subgroups:
        return source
    subgroups, codes = read_subgroups(spec, frames)
    return replace(source, subgroups=subgroups, subgroup_codes=codes)


def make_source(
    labels: NDArray[Any] | Sequence[Any],
    features: NDArray[Any] | ImageRows | Encoder,
    train_count: int | None = None,
    sites: Int64[np.ndarray, "n"] | None = None,
    *,
    pixel_max: float | None = None,
) -> Source:
    """Build a source from raw labels and features.

    Args:
        labels: (n,) numbers or text, or (n, findings) numbers.
        features: The features (n, *shape), or a function that returns them: see `Source.encode`.
        train_count: See `Source`.
        sites: See `Source`.
        pixel_max: See `Source`.

    Raises:
        DataError: A label is missing, or features and labels differ in number.
    """
    matrix, labels = None, np.asarray(labels)
    if labels.ndim == 2:
        matrix, labels = labels, np.zeros(len(labels), dtype=np.int8)
    check_spellings(labels)
    classes, codes = label_classes(labels)
    if callable(features):
        return Source(classes, codes, features, train_count, sites, pixel_max=pixel_max, matrix=matrix)
    if len(features) != len(codes):
        got = f"{len(features):,} rows of features but {len(codes):,} labels"
        raise DataError("features", got=got, allowed="exactly one label per row", hint="provide one label for each row")
    return Source(classes, codes, lambda train_rows: features, train_count, sites, pixel_max=pixel_max, matrix=matrix)


def with_findings(source: Source, spec: DataSpec, *, site: bool = False) -> Source:
    """Return a source whose labels are the findings of ``label-columns``, or a single label without this key.

    Args:
        source: The rows, as a reader returns them.
        spec: The options, with ``label-columns``.
        site: See `mark_classes`.

    Raises:
        DataError: ``label-columns`` is not set for rows with several labels; or see `make_findings` and `mark_classes`.
    """
    if source.matrix is not None and spec.findings:
        return replace(source, classes=(), findings=make_findings(source.matrix, spec.findings, spec))
    if source.matrix is not None:
        got = f"{source.matrix.shape[1]} labels for each row"
        hint = "set label-columns to their names"
        raise DataError("labels", got=got, allowed="a single label for each row without label-columns", hint=hint)
    if not spec.findings:
        return source
    if spec.uncertain != "ignore":
        allowed, hint = "'ignore' for labels that are classes", "remove uncertain"
        raise DataError("uncertain", got=repr(spec.uncertain), allowed=allowed, hint=hint)
    findings = mark_classes(source.classes, source.codes, spec.findings, site=site)
    return replace(source, classes=(), codes=np.zeros_like(source.codes), findings=findings)


def number_source(
    numbers: Float64[np.ndarray, "n"], encode: Encoder, train_count: int | None, sites: Int64[np.ndarray, "n"] | None
) -> Source:
    """Build a source whose labels are numbers.

    Args:
        numbers: The labels, finite numbers.
        encode: See `Source`.
        train_count: See `Source`.
        sites: See `Source`.
    """
    return Source((), np.zeros(len(numbers), dtype=np.int64), encode, train_count, sites, numbers=numbers)


def label_classes(labels: NDArray[Any], what: str = "labels") -> tuple[tuple[str, ...], Int64[np.ndarray, "n"]]:
    """Return the distinct labels in an array, and each label's index among them.

    Args:
        labels: (n,) numbers or text.
        what: The name of the labels in errors.

    Returns:
        The distinct labels as text, sorted by value if all are numbers, and each label's index among them.

    Raises:
        DataError: Labels are missing, or the array is empty or has several columns.
    """
    if labels.ndim != 1:
        raise DataError(what, got=f"shape {labels.shape}", allowed="labels of shape (n,)", hint="reshape the array")
    if len(labels) == 0:
        raise DataError("rows", got="no sample", allowed="at least one sample of each class", hint="add samples")
    if labels.dtype.kind == "O":
        missing = sum(value is None or value != value for value in labels)
    else:
        missing = int(np.count_nonzero(labels != labels))
    if missing:
        got = f"{missing:,} of {len(labels):,} missing"
        raise DataError(what, got=got, allowed="no missing labels", hint="fill the missing labels, or drop their rows")
    values, codes = np.unique(labels.astype(str) if labels.dtype.kind == "O" else labels, return_inverse=True)
    texts = [as_text(value) for value in values]
    by_value = all(map(is_number, texts))
    classes = sorted(set(texts), key=lambda text: (float(text) if by_value else 0.0, text))
    index_of = {text: index for index, text in enumerate(classes)}
    return tuple(classes), np.array([index_of[text] for text in texts], dtype=np.int64)[codes.reshape(-1)]


def positive_classes(
    classes: Sequence[str], wanted: str, *, site: bool = False, private: bool = False
) -> Bool[np.ndarray, "{len(classes)}"]:
    """Mark the classes that count as positive.

    Args:
        classes: The original labels, see `Source`.
        wanted: The value of `DataSpec.positive_label`.
        site: Whether the labels are from one site's file, which may lack classes of other sites. `wanted` may then
            name a label that does not occur, but must not depend on the classes that occur.
        private: Whether errors are sent to another party, as a site's errors are, and must not quote labels.

    Raises:
        DataError: `wanted` does not fit the labels. Lists the labels, or only their number if they are private.
    """
    occur = f"labels that occur: {join_first(classes, 20)}"
    if site or private:
        occur = f"{len(classes)} different labels occur here"

    def refusal(got: str, allowed: str, hint: str) -> DataError:
        return DataError("positive-label", got=got, allowed=allowed, hint=hint)

    if wanted == "":
        if site and not set(classes) <= {"0", "1", "-1"}:
            allowed = f"a label, since a site's file may lack a label of other sites; {occur}"
            raise refusal(NOTHING, allowed, "set positive-label")
        if not site and len(classes) != 2:
            got, hint = f"nothing for {len(classes)} labels", "set positive-label to the positive labels"
            raise refusal(got, f"one or several labels; {occur}", hint)
        return np.array([name == ("1" if site else classes[-1]) for name in classes])
    if wanted == "first-half" and "first-half" not in classes:
        if site:
            got = "'first-half', which depends on labels that a site's file may lack"
            raise refusal(got, f"comma-separated labels; {occur}", "set positive-label to the positive labels")
        return np.arange(len(classes)) < len(classes) // 2

    marked = np.zeros(len(classes), dtype=bool)
    for label in [wanted] if wanted in classes else [part.strip() for part in wanted.split(",")]:
        match = label if label in classes else as_text(float(label)) if is_number(label) else label
        if match in classes:
            marked[list(classes).index(match)] = True
        elif not site:
            raise refusal(f"{label!r}, which does not occur", occur, "set positive-label to a label that occurs")
    return marked


def check_both_classes(labels: Int8[np.ndarray, "n"], what: str, classes: Sequence[str]) -> None:
    """Check that both classes have rows.

    Args:
        labels: The rows' labels, 0 or 1.
        what: The name of the rows in the error.
        classes: The data set's original labels, for the error.

    Raises:
        DataError: All labels are the same.
    """
    positives = int(labels.sum())
    if positives in (0, len(labels)):
        got = f"one class only: {positives:,} positives and {len(labels) - positives:,} negatives"
        allowed = f"both classes; labels that occur: {', '.join(classes[:20])}"
        hint = "set positive-label to a label that occurs, or add rows of the missing class"
        raise DataError(what, got=got, allowed=allowed, hint=hint)


@dataclass(frozen=True, eq=False)
class Samples:
    """Features, and labels (n,) that are 0 or 1, or are numbers; all contiguous and read-only.

    Features are float32, or float64 if the caller passes float64; features from files go through `as_float32`. Images
    that are larger than the cache are `ImageRows`.

    Attributes:
        features: The features.
        labels: The labels.
        sites: For held-out rows, the client that stands for each row's site (n,), -1 for a site without a client. None
            if the clients are not sites.
        subgroups: For held-out rows, the group of each row in each column of ``subgroups`` (n, c). None without them.
        offsets: The number that is added to each row's score (n,), in float64. None: no offsets.
        numeric: Whether the labels are numbers, in float64. All rows then count as `negatives`.
        periods: The intervals in which the rows are observed. None: rows have no times.
        findings: The rows' findings. All `labels` are then 0. None: each row has one label.

    Raises:
        ValueError: The lengths differ, or a label is neither 0 nor 1, or a number is not finite.
    """

    features: Float32[np.ndarray, "n *shape"] | Float64[np.ndarray, "n *shape"] | ImageRows
    labels: NDArray[np.int8] | NDArray[np.float64]
    sites: NDArray[np.int64] | None = None
    subgroups: NDArray[np.int64] | None = None
    offsets: NDArray[np.float64] | None = None
    numeric: bool = False
    periods: Periods | None = None
    findings: Findings | None = None

    def __post_init__(self) -> None:
        features = self.features
        if not isinstance(features, ImageRows):
            dtype = np.float64 if features.dtype == np.float64 else np.float32
            features = np.ascontiguousarray(features, dtype=dtype).view()
            features.setflags(write=False)
        labels = np.ascontiguousarray(self.labels, dtype=np.float64 if self.numeric else np.int8).view()
        if labels.ndim != 1 or len(features) != len(labels):
            raise ValueError(f"features {features.shape} and labels {labels.shape} must have the same number of rows")
        if self.offsets is not None:
            offsets = np.ascontiguousarray(self.offsets, dtype=np.float64).view()
            if offsets.shape != labels.shape or not np.isfinite(offsets).all():
                raise ValueError(f"offsets {offsets.shape} must be finite, one for each of the {len(labels)} rows")
            offsets.setflags(write=False)
            object.__setattr__(self, "offsets", offsets)
        if self.numeric and not np.isfinite(labels).all():
            raise ValueError("labels must be finite numbers")
        if not self.numeric and not np.isin(labels, (0, 1)).all():
            raise ValueError(f"labels must be 0 or 1, got {np.unique(labels).tolist()}")
        labels.setflags(write=False)
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample's features."""
        return tuple(self.features.shape[1:])

    @cached_property
    def positives(self) -> Int64[np.ndarray, "positives"]:
        """The indices of the samples labelled 1, ascending. Empty if the labels are numbers."""
        return np.flatnonzero(self.labels == 1) if not self.numeric else np.arange(0)

    @cached_property
    def negatives(self) -> Int64[np.ndarray, "negatives"]:
        """The indices of the samples labelled 0, ascending. All indices if the labels are numbers."""
        return np.flatnonzero(self.labels == 0) if not self.numeric else np.arange(len(self))

    def select(self, rows: slice | NDArray[np.int64]) -> "Samples":
        """Return some samples without their sites. Consecutive samples, of a slice, are not copied."""
        chosen = Samples.__new__(Samples)  # without the checks, which these samples have passed
        parts = ("features", "labels", "offsets", "periods", "findings")
        values = {name: None if (value := getattr(self, name)) is None else value[rows] for name in parts}
        for name in ("features", "labels", "offsets"):
            if isinstance(value := values[name], np.ndarray):
                value.setflags(write=False)
        vars(chosen).update(values, sites=None, subgroups=None, numeric=self.numeric)
        return chosen


@overload
def as_float32(features: ImageRows) -> ImageRows: ...
@overload
def as_float32(features: Shaped[np.ndarray, "n *shape"]) -> Float32[np.ndarray, "n *shape"]: ...
def as_float32(
    features: Shaped[np.ndarray, "n *shape"] | ImageRows,
) -> Float32[np.ndarray, "n *shape"] | ImageRows:
    """Return `features` as float32; uint8 values are pixels, and are scaled to [0, 1]."""
    if isinstance(features, ImageRows):
        return replace(features, scaled=True)
    if features.dtype == np.uint8:
        scaled: np.ndarray = np.divide(features, 255, dtype=np.float32)
        return scaled
    with np.errstate(over="ignore"):  # `check_finite` reports overflows
        return features.astype(np.float32, copy=False)


def take_float32(
    features: Shaped[np.ndarray, "n *shape"] | ImageRows, rows: Int64[np.ndarray, "some"], *, precise: bool = False
) -> Float[np.ndarray, "some *shape"] | ImageRows:
    """Return selected rows as `as_float32` does, without a copy of all rows. Images in files are not read.

    Args:
        features: Features of any number type.
        rows: The rows' indices.
        precise: Whether float64 features stay float64.

    Raises:
        DataError: See `allocate`.
    """
    if isinstance(features, ImageRows):
        selected: ImageRows = features[rows]
        return as_float32(selected)
    keeps = precise and features.dtype == np.float64
    taken = allocate((len(rows), *features.shape[1:]), np.float64 if keeps else np.float32)
    for part in slices(taken):
        taken[part] = features[rows[part]] if keeps else as_float32(features[rows[part]])
    return taken


def check_finite(features: Shaped[np.ndarray, "n *shape"] | ImageRows) -> None:
    """Check that features are finite in float32. The reader of images has checked `ImageRows`.

    Raises:
        DataError: Samples are not finite; gives their number and the first row.
    """
    if isinstance(features, ImageRows) or features.dtype.kind != "f":
        return
    finite = np.ones(len(features), dtype=bool)
    for part in slices(features):
        finite[part] = np.isfinite(as_float32(features[part])).reshape(len(finite[part]), -1).all(axis=1)
    if not finite.all():
        bad, first = f"{int((~finite).sum()):,} of {len(features):,} samples", int(np.argmin(finite)) + 1
        got = f"{bad} that are not finite in float32, the first is row {first:,}"
        raise DataError("features", got=got, allowed="finite numbers", hint="replace the values, or drop the rows")
