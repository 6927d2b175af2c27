"""What a reader hands over: every row's original class, and features to encode once the split is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from problems.data.columns import Columns, Encode, standardised
from problems.data.spec import DataError
from problems.errors import NOTHING

Rows = NDArray[np.int64]
Encoder = Callable[[Rows], NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Source:
    """All rows of a data set, those of its own test split (if it has one) last.

    `encode(train_rows)` returns the features of all rows, (n, *shape), float or uint8 pixels, with any
    statistics taken from `train_rows` alone.
    """

    classes: tuple[str, ...]
    """The original labels as text, sorted: by value when all are numbers."""
    codes: NDArray[np.int64]
    """(n,) each row's index into `classes`."""
    encode: Encoder
    train_count: int | None = None
    """Rows before the set's own test split; None when it has none."""
    site_sizes: tuple[int, ...] | None = None
    """Sizes of the sites that the training rows come from, in order; None when there are none."""
    columns: Encode | None = None
    """Of tables: the features before they are scaled, their text encoded by the values in the given rows."""

    def __len__(self) -> int:
        return len(self.codes)

    def features(self, train_rows: Rows) -> tuple[NDArray[Any], Columns | None]:
        """What `encode` returns, and of a table what its columns are and were scaled by."""
        if self.columns is None:
            return self.encode(train_rows), None
        return self.columns(train_rows).features(train_rows)


def make_source(
    labels: NDArray[Any] | Sequence[Any],
    features: NDArray[Any] | Encoder,
    train_count: int | None = None,
    site_sizes: tuple[int, ...] | None = None,
    columns: Encode | None = None,
) -> Source:
    """Build a source from raw labels, (n,) numbers or text, and its features or their encoder.

    Raises:
        DataError: when a label is missing, or features and labels differ in number.
    """
    classes, codes = label_classes(np.asarray(labels))
    if not callable(features):
        array = features
        if len(array) != len(codes):
            raise DataError(
                "features",
                got=f"{len(array):,} rows of features but {len(codes):,} labels",
                allowed="one label a row",
                hint="bring as many",
            )
        return Source(classes, codes, lambda train_rows: array, train_count, site_sizes)
    return Source(classes, codes, features, train_count, site_sizes, columns)


def label_classes(labels: NDArray[Any]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the distinct labels as sorted text and each label's index among them."""
    if labels.ndim != 1:
        raise DataError("labels", got=f"shape {labels.shape}", allowed="one column, (n,)", hint="bring them so")
    if len(labels) == 0:
        raise DataError("rows", got="no sample", allowed="at least one of each class", hint="bring some")
    if labels.dtype.kind == "f":
        missing = int(np.isnan(labels).sum())
    elif labels.dtype.kind == "O":
        missing = sum(value is None or value != value for value in labels)
        labels = labels if missing else labels.astype(str)
    else:
        missing = 0
    if missing:
        raise DataError(
            "labels",
            got=f"{missing:,} of {len(labels):,} missing",
            allowed="none",
            hint="fill them, or drop their rows",
        )

    values, codes = np.unique(labels, return_inverse=True)
    texts = [as_text(value) for value in values]
    classes = sorted(set(texts), key=_numeric_key) if all(map(_is_number, texts)) else sorted(set(texts))
    place = {text: index for index, text in enumerate(classes)}
    return tuple(classes), np.array([place[text] for text in texts], dtype=np.int64)[codes.reshape(-1)]


def positive_classes(classes: Sequence[str], wanted: str, *, site: bool = False) -> NDArray[np.bool_]:
    """Mark the classes that count as positive, (len(classes),) bool.

    `wanted` is as `DataSpec.positive_label`. A site's file (`site`) may lack classes that other sites have:
    there a label that does not occur is no error, and whatever depends on the set of all classes is.

    Raises:
        DataError: lists the labels that occur; of a site's file, only how many, since the message leaves the site.
    """
    occur = f"labels that occur: {', '.join(classes[:20])}{', ...' if len(classes) > 20 else ''}"
    if site:
        occur = f"{len(classes)} different labels occur here"
    if wanted == "":
        if site and not set(classes) <= {"0", "1", "-1"}:
            raise DataError(
                "positive-label",
                got=NOTHING,
                allowed=f"a label, since a site's file may lack one that others have; {occur}",
                hint="set positive-label",
            )
        if not site and len(classes) != 2:
            raise DataError(
                "positive-label",
                got=f"nothing for {len(classes)} labels",
                allowed=f"some of them; {occur}",
                hint="set positive-label to those that are positive",
            )
        return np.array([name == ("1" if site else classes[-1]) for name in classes])
    if wanted == "first-half" and "first-half" not in classes:
        if site:
            raise DataError(
                "positive-label",
                got="'first-half', which depends on labels that a site's file may lack",
                allowed=f"labels with commas; {occur}",
                hint="name the positive labels instead",
            )
        return np.arange(len(classes)) < len(classes) // 2

    marked = np.zeros(len(classes), dtype=bool)
    for label in [wanted] if wanted in classes else [part.strip() for part in wanted.split(",")]:
        match = label if label in classes else as_text(float(label)) if _is_number(label) else label
        if match in classes:
            marked[list(classes).index(match)] = True
        elif not site:
            raise DataError(
                "positive-label",
                got=f"{label!r}, which does not occur",
                allowed=occur,
                hint="set positive-label to one of them",
            )
    return marked


def standardise(columns: NDArray[np.float64], train_rows: Rows) -> NDArray[np.float64]:
    """Return `columns` (n, d) with mean 0 and variance 1 over `train_rows`; a constant column becomes 0."""
    training = columns[train_rows]
    constant = training.max(axis=0) == training.min(axis=0)
    return standardised(columns, training.mean(axis=0), np.where(constant, 0.0, training.std(axis=0)))


def as_text(value: Any) -> str:
    """A label or category as text: whole numbers without a decimal point."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _numeric_key(text: str) -> tuple[float, str]:
    return float(text), text
