"""Fingerprints of data, by which a resumed run checks that the data have not changed since its start."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from jaxtyping import Float64, Int8, Int64, Shaped

from problems.data.image_rows import ImageRows
from problems.data.spec import DataError

DIGEST_BYTES = 16


@dataclass(frozen=True)
class Fingerprint:
    """The fingerprint of a data set, or of one site's rows.

    Attributes:
        columns: A digest of the sample's shape and of the names of a table's columns.
        rows: The number of rows in each part, such as training and test rows.
        classes: The number of negative and of positive rows in each part.
        content: A digest of the rows and labels, which depends on the rows' order; "" if unknown.
    """

    columns: str
    rows: tuple[int, ...]
    classes: tuple[int, ...]
    content: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fingerprint as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Restore a fingerprint from the output of `to_json`.

        Raises:
            DataError: The value is not such an object.
        """
        try:
            rows, classes = (tuple(map(int, value[name])) for name in ("rows", "classes"))
            return cls(str(value["columns"]), rows, classes, str(value["content"]))
        except (TypeError, KeyError, ValueError):
            allowed = "a fingerprint that a run has stored"
            raise DataError("fingerprint", got=repr(value), allowed=allowed, hint="begin a new run") from None

    def find_difference(self, now: Self) -> str:
        """Describe how a later fingerprint differs from this fingerprint; "" if no difference is known."""
        if self.columns != now.columns:
            return "other columns"
        for name, before, after in (("rows", self.rows, now.rows), ("labels", self.classes, now.classes)):
            if before != after:
                return f"other {name} (counts of the parts: {_join(before)} before, {_join(after)} now)"
        if self.content and now.content and self.content != now.content:
            return "other values, labels or order of rows"
        return ""


def digest_rows(
    features: Shaped[np.ndarray, "n *shape"] | ImageRows,
    labels: Int8[np.ndarray, "n *findings"] | Float64[np.ndarray, "n"],
    parts: Sequence[Int64[np.ndarray, "_"] | range],
    key: bytes = b"",
    offsets: Float64[np.ndarray, "n"] | None = None,
) -> str:
    """Return a digest of the rows, which depends on their order.

    Args:
        features: The features of all rows.
        labels: The labels of all rows.
        parts: The indices of the rows of each part, such as the training and the test rows.
        key: A secret of at most 64 bytes without which the digest cannot be computed. b"": no secret.
        offsets: The offsets of all rows. None: no offsets.
    """
    whole = hashlib.blake2b(digest_size=DIGEST_BYTES, key=key)
    for part in parts:
        whole.update(b"%d rows of %s;" % (len(part), str((features.dtype, features.shape[1:])).encode()))
        if isinstance(features, ImageRows):
            own = features[np.asarray(part, dtype=np.int64)]
            images = (image for _, block in own.blocks() for image in block)
        else:
            images = (features[row] for row in part)
        for row, image in zip(part, images, strict=True):
            whole.update(image.tobytes() + labels[row].tobytes())
        if offsets is not None:
            whole.update(offsets[np.asarray(part, dtype=np.int64)].tobytes())
    return whole.hexdigest()


def _join(numbers: Sequence[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)
