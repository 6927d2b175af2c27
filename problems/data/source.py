"""What a reader returns: every row's original class, and features that are encoded once the split is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from problems.data.columns import Columns, Encoded
from problems.data.spec import DataError
from problems.errors import NOTHING

Rows = NDArray[np.int64]
Encoder = Callable[[Rows], Any]


@dataclass(frozen=True, eq=False)
class Source:
    """All rows of a data set, those of its own test split (if it has one) last."""

    classes: tuple[str, ...]
    """The original labels as text, sorted: by value when all are numbers."""
    codes: NDArray[np.int64]
    """(n,) each row's index into `classes`."""
    encode: Encoder
    """Maps the training rows to the features of all rows, (n, *shape), float or uint8 pixels; or to an unscaled
    `Encoded` for a table. Any statistics come from the training rows alone."""
    train_count: int | None = None
    """Rows before the set's own test split; None when it has none."""
    site_sizes: tuple[int, ...] | None = None
    """Sizes of the sites that the training rows come from, in order; None when there are none."""

    def __len__(self) -> int:
        return len(self.codes)

    def features(self, train_rows: Rows) -> tuple[Any, Columns | None]:
        """The features of all rows, scaled, and the `Columns` of a table, else None."""
        encoded = self.encode(train_rows)
        return encoded.features(train_rows) if isinstance(encoded, Encoded) else (encoded, None)

    def own_split(self) -> tuple[Rows, Rows]:
        """The rows of the set's own training and test split; without one, all rows and none."""
        train_count = len(self) if self.train_count is None else self.train_count
        return np.arange(train_count), np.arange(train_count, len(self))


def make_source(
    labels: NDArray[Any] | Sequence[Any],
    features: NDArray[Any] | Encoder,
    train_count: int | None = None,
    site_sizes: tuple[int, ...] | None = None,
) -> Source:
    """Build a source from raw labels, (n,) numbers or text, and its features or their encoder.

    Raises:
        DataError: when a label is missing, or features and labels differ in number.
    """
    classes, codes = label_classes(np.asarray(labels))
    if callable(features):
        return Source(classes, codes, features, train_count, site_sizes)
    if len(features) != len(codes):
        raise DataError(
            "features",
            got=f"{len(features):,} rows of features but {len(codes):,} labels",
            allowed="one label a row",
            hint="bring as many",
        )
    return Source(classes, codes, lambda train_rows: features, train_count, site_sizes)


def label_classes(labels: NDArray[Any]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the distinct labels as sorted text and each label's index among them."""
    if labels.ndim != 1:
        raise DataError("labels", got=f"shape {labels.shape}", allowed="one column, (n,)", hint="bring them so")
    if len(labels) == 0:
        raise DataError("rows", got="no sample", allowed="at least one of each class", hint="bring some")
    missing = sum(value is None or value != value for value in labels.tolist())
    if missing:
        raise DataError(
            "labels",
            got=f"{missing:,} of {len(labels):,} missing",
            allowed="none",
            hint="fill them, or drop their rows",
        )

    values, codes = np.unique(labels.astype(str) if labels.dtype.kind == "O" else labels, return_inverse=True)
    texts = [as_text(value) for value in values]
    by_value = all(map(_is_number, texts))
    classes = sorted(set(texts), key=lambda text: (float(text) if by_value else 0.0, text))
    place = {text: index for index, text in enumerate(classes)}
    return tuple(classes), np.array([place[text] for text in texts], dtype=np.int64)[codes.reshape(-1)]


def positive_classes(classes: Sequence[str], wanted: str, *, site: bool = False) -> NDArray[np.bool_]:
    """Mark the classes that count as positive, (len(classes),) bool.

    `wanted` is as `DataSpec.positive_label`. A site's file (`site`) may lack classes that other sites have:
    there a label that does not occur is no error, but a choice that depends on all classes is one.

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


def check_both_classes(labels: NDArray[np.int8], what: str, classes: Sequence[str]) -> None:
    """Raise DataError if some rows' labels, 0 or 1, are all the same."""
    positives = int(labels.sum())
    if positives in (0, len(labels)):
        raise DataError(
            what,
            got=f"one class only: {positives:,} positives and {len(labels) - positives:,} negatives",
            allowed=f"both classes; labels that occur: {', '.join(classes[:20])}",
            hint="set positive-label",
        )


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
