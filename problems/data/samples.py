"""Binary-labelled samples in memory, the form in which every data set reaches the algorithms."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from problems.data.spec import DataError


@dataclass(frozen=True, eq=False)
class Samples:
    """Features (n, *shape) and labels (n,) int8 in {0, 1}; both contiguous and read-only.

    Features are float32, or float64 if they are given so; those from files go through `as_float32`.

    Raises:
        ValueError: when the two lengths differ or a label is neither 0 nor 1.
    """

    features: NDArray[np.float32] | NDArray[np.float64]
    labels: NDArray[np.int8]

    def __post_init__(self) -> None:
        dtype = np.float64 if self.features.dtype == np.float64 else np.float32
        features = np.ascontiguousarray(self.features, dtype=dtype).view()
        labels = np.ascontiguousarray(self.labels, dtype=np.int8).view()
        if labels.ndim != 1 or len(features) != len(labels):
            raise ValueError(f"features {features.shape} and labels {labels.shape} do not belong together")
        if not np.isin(labels, (0, 1)).all():
            raise ValueError(f"labels must be 0 or 1, got {np.unique(labels).tolist()}")
        features.setflags(write=False)
        labels.setflags(write=False)
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample's features."""
        return tuple(self.features.shape[1:])

    @cached_property
    def positives(self) -> NDArray[np.int64]:
        """Indices of the samples labelled 1, ascending."""
        return np.flatnonzero(self.labels == 1)

    @cached_property
    def negatives(self) -> NDArray[np.int64]:
        """Indices of the samples labelled 0, ascending."""
        return np.flatnonzero(self.labels == 0)


def as_float32(features: NDArray[Any]) -> NDArray[np.float32]:
    """Return `features` as float32; uint8 values are pixels, and are scaled to [0, 1]."""
    if features.dtype == np.uint8:
        scaled: NDArray[np.float32] = np.divide(features, 255, dtype=np.float32)
        return scaled
    with np.errstate(over="ignore"):  # `check_finite` reports overflows
        return features.astype(np.float32, copy=False)


def check_finite(features: NDArray[Any]) -> None:
    """Raise DataError if a sample's features are not finite in float32; says how many and which is the first."""
    if features.dtype.kind != "f":
        return
    finite = np.isfinite(as_float32(features)).reshape(len(features), -1).all(axis=1)
    if not finite.all():
        raise DataError(
            "features",
            got=(
                f"{int((~finite).sum()):,} of {len(features):,} samples that are not finite in float32, the first is "
                f"row {int(np.argmin(finite)) + 1:,}"
            ),
            allowed="none",
            hint="fill or drop them",
        )
