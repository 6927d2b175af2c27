"""What the samples of a run were before they became features and 0/1 labels, so that new ones are read alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from jaxtyping import Bool, Int8, Shaped
from numpy.typing import NDArray

from problems.data.samples import as_float32, check_finite, label_classes
from problems.data.spec import DataError
from problems.data.spellings import check_spellings

_KEYS = ("shape", "pixels", "negative_labels", "positive_labels")


@dataclass(frozen=True)
class SampleFormat:
    """The form of a run's samples, as ``samples`` of result.json has it.

    Attributes:
        shape: of one sample's features, as the network takes them.
        pixels: whether features were bytes that are scaled to [0, 1]; None where the server does not know it.
        negative_labels, positive_labels: the original labels, as text.
    """

    shape: tuple[int, ...]
    pixels: bool | None
    negative_labels: tuple[str, ...]
    positive_labels: tuple[str, ...]

    @classmethod
    def of(
        cls,
        features: Shaped[np.ndarray, "n *shape"],
        classes: Sequence[str],
        positive: Bool[np.ndarray, "{len(classes)}"],
    ) -> Self:
        """Return the format of a data set.

        Args:
            features: of any of its rows, not yet scaled if they are pixels.
            classes: its original labels.
            positive: which of them are positive.
        """
        names = np.array(classes)
        negatives, positives = (tuple(names[positive == side].tolist()) for side in (False, True))
        return cls(tuple(features.shape[1:]), features.dtype == np.uint8, negatives, positives)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read what `to_json` wrote.

        Raises:
            DataError: it is something else.
        """
        try:
            shape, pixels, negative, positive = (value[key] for key in _KEYS)
            assert pixels in (None, True, False)
            return cls(tuple(map(int, shape)), pixels, tuple(map(str, negative)), tuple(map(str, positive)))
        except (TypeError, KeyError, ValueError, AssertionError):
            allowed = f"an object with {', '.join(_KEYS)}"
            raise DataError("samples", got=repr(value), allowed=allowed, hint="see docs/run-directory.md") from None

    def to_json(self) -> dict[str, Any]:
        """The format as an object of JSON."""
        return {
            "shape": list(self.shape),
            "pixels": self.pixels,
            "negative_labels": list(self.negative_labels),
            "positive_labels": list(self.positive_labels),
        }

    def scale(self, features: Shaped[np.ndarray, "n *shape"]) -> NDArray[np.float32]:
        """Return new samples as the network takes them.

        Args:
            features: as they were given in training, or, for pixels, already scaled to [0, 1].

        Raises:
            DataError: another shape, no numbers, values that are not finite, or numbers outside [0, 1] in the place of
                pixels.
        """
        if features.ndim < 2 or features.dtype.kind not in "biuf" or features.shape[1:] != self.shape:
            got = f"shape {features.shape} of {features.dtype}"
            allowed = f"numbers of shape (n, {', '.join(map(str, self.shape))})"
            raise DataError("samples", got=got, allowed=allowed, hint="bring the samples into the form of the training")
        if self.pixels is False:
            features = features.astype(np.float32) if features.dtype == np.uint8 else features
        elif self.pixels and features.dtype != np.uint8 and not ((features >= 0) & (features <= 1)).all():
            got = f"{features.dtype} outside [0, 1]"
            allowed = "bytes (uint8), as in training, or numbers in [0, 1]"
            raise DataError("pixels", got=got, allowed=allowed, hint="convert them with .astype('uint8')")
        check_finite(features)
        return as_float32(features)

    def encode_labels(self, labels: NDArray[Any]) -> Int8[np.ndarray, "n"]:
        """Return original labels as 0 or 1.

        Args:
            labels: (n,) numbers or text.

        Raises:
            DataError: a label is missing, or occurred neither as a negative nor as a positive one in training.
        """
        check_spellings(labels)
        classes, codes = label_classes(labels)
        known = (*self.negative_labels, *self.positive_labels)
        strange = [name for name in classes if name not in known]
        if strange:
            got = f"{', '.join(map(repr, strange[:10]))}, which the run has not seen"
            allowed = f"negative: {', '.join(self.negative_labels)}; positive: {', '.join(self.positive_labels)}"
            raise DataError("labels", got=got, allowed=allowed, hint="write them as in training")
        marked: np.ndarray = np.isin(classes, self.positive_labels).astype(np.int8)[codes]
        return marked
