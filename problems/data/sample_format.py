"""The format of a run's samples in their files: shape, pixel range and original labels.

A run stores the format as ``samples`` in result.json, so new samples can be scored the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from jaxtyping import Bool, Int8, Shaped
from numpy.typing import NDArray

from problems.data.image_rows import ImageRows
from problems.data.samples import as_float32, check_finite, label_classes
from problems.data.spec import DataError
from problems.data.spellings import check_spellings

_KEYS = ("shape", "pixels", "negative_labels", "positive_labels")


@dataclass(frozen=True)
class SampleFormat:
    """The format of a run's samples.

    Attributes:
        shape: The shape of a sample's features, as the network expects them.
        pixels: Whether the files have bytes, which are scaled to [0, 1]; None if the server does not know.
        negative_labels, positive_labels: The original labels, as text.
        pixel_max: The pixel value in the files that became 1, for images of more than 8 bits; else None.
        image_size: The value of `image-size`.
    """

    shape: tuple[int, ...]
    pixels: bool | None
    negative_labels: tuple[str, ...]
    positive_labels: tuple[str, ...]
    pixel_max: float | None = None
    image_size: str = ""

    @classmethod
    def of(
        cls,
        features: Shaped[np.ndarray, "n *shape"] | ImageRows,
        classes: Sequence[str],
        positive: Bool[np.ndarray, "{len(classes)}"],
        pixel_max: float | None = None,
        image_size: str = "",
    ) -> Self:
        """Return the format of a data set.

        Args:
            features: The features of any rows; pixels are not yet scaled.
            classes: The data set's original labels.
            positive: Whether each label is positive.
            pixel_max: See the class.
            image_size: See the class.
        """
        names = np.array(classes)
        negatives, positives = (tuple(names[positive == side].tolist()) for side in (False, True))
        return cls(tuple(features.shape[1:]), features.dtype == np.uint8, negatives, positives, pixel_max, image_size)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Restore a format from the output of `to_json`.

        Raises:
            DataError: The value is not such an object.
        """
        try:
            shape, pixels, negative, positive = (value[key] for key in _KEYS)
            assert pixels in (None, True, False)
            pixel_max = None if value.get("pixel_max") is None else float(value["pixel_max"])
            labels = tuple(map(str, negative)), tuple(map(str, positive))
            return cls(tuple(map(int, shape)), pixels, *labels, pixel_max, str(value.get("image_size", "")))
        except (TypeError, KeyError, ValueError, AssertionError):
            allowed = f"an object with {', '.join(_KEYS)}"
            hint = "restore result.json, see docs/run-directory.md"
            raise DataError("samples", got=repr(value), allowed=allowed, hint=hint) from None

    def to_json(self) -> dict[str, Any]:
        """Return the format as a JSON object."""
        return {
            "shape": list(self.shape),
            "pixels": self.pixels,
            "negative_labels": list(self.negative_labels),
            "positive_labels": list(self.positive_labels),
            **({} if self.pixel_max is None else {"pixel_max": self.pixel_max}),
            **({"image_size": self.image_size} if self.image_size else {}),
        }

    def scale(self, features: Shaped[np.ndarray, "n *shape"] | ImageRows) -> NDArray[np.float32] | ImageRows:
        """Convert new samples to the network's input.

        Args:
            features: Features in the format of the training data; pixels may already be scaled to [0, 1]. Integers
                are divided by `pixel_max`, unless it is None.

        Raises:
            DataError: The features have another shape, are not numbers, are not finite, or are pixels outside [0, 1].
        """
        if isinstance(features, ImageRows):
            if features.shape[1:] == self.shape and (self.pixels is not False or self.pixel_max is not None):
                return as_float32(features)  # the reader has checked them, and has divided 16-bit images
            features = np.asarray(features)
        if features.ndim < 2 or features.dtype.kind not in "biuf" or features.shape[1:] != self.shape:
            got = f"shape {features.shape} of {features.dtype}"
            allowed = f"numbers of shape (n, {', '.join(map(str, self.shape))})"
            raise DataError(
                "samples", got=got, allowed=allowed, hint="convert the samples to the format of the training data"
            )
        if self.pixel_max is not None:
            features = _scale_deep(features, self.pixel_max)
        elif self.pixels is False:
            features = features.astype(np.float32) if features.dtype == np.uint8 else features
        elif self.pixels and features.dtype != np.uint8 and not ((features >= 0) & (features <= 1)).all():
            got = f"{features.dtype} outside [0, 1]"
            allowed = "bytes (uint8), as in training, or numbers in [0, 1]"
            hint = "scale the pixels to [0, 1]; use .astype('uint8') only if the values are 0 to 255"
            raise DataError("pixels", got=got, allowed=allowed, hint=hint)
        check_finite(features)
        return as_float32(features)

    def encode_labels(self, labels: NDArray[Any]) -> Int8[np.ndarray, "n"]:
        """Convert original labels to 0 and 1.

        Args:
            labels: (n,) numbers or text.

        Raises:
            DataError: A label is missing, or occurred neither as a negative nor as a positive label in training.
        """
        check_spellings(labels)
        classes, codes = label_classes(labels)
        known = (*self.negative_labels, *self.positive_labels)
        strange = [name for name in classes if name not in known]
        if strange:
            got = f"{', '.join(map(repr, strange[:10]))}, which did not occur in training"
            allowed = f"negative: {', '.join(self.negative_labels)}; positive: {', '.join(self.positive_labels)}"
            raise DataError("labels", got=got, allowed=allowed, hint="spell the labels as in training")
        marked: np.ndarray = np.isin(classes, self.positive_labels).astype(np.int8)[codes]
        return marked


def _scale_deep(features: Shaped[np.ndarray, "n *shape"], pixel_max: float) -> NDArray[np.float32]:
    """Scale images of more than 8 bits to [0, 1]: divide integers by `pixel_max`, keep floating-point numbers.

    Raises:
        DataError: The features are bytes, or numbers outside their range.
    """
    integers = features.dtype.kind in "iu" and pixel_max > 1
    largest = pixel_max if integers else 1.0
    if features.dtype == np.uint8 or not ((features >= 0) & (features <= largest)).all():
        got = "uint8, which has 8 bits" if features.dtype == np.uint8 else f"{features.dtype} outside [0, {largest:g}]"
        allowed = f"integers from 0 to {pixel_max:g}, as in the training images, or numbers in [0, 1]"
        hint = "convert the samples to the format of the training data"
        raise DataError("pixels", got=got, allowed=allowed, hint=hint)
    return features.astype(np.float32) / np.float32(largest)
