"""A client's resident data, and the mini-batches that are drawn from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from problems.models import NUMPY_DTYPES
from problems.randomness import Purpose
from problems.sampling import EpochSampler, Indices, on_device


@dataclass(frozen=True, eq=False)
class Site:
    """A client's identity and its resident data.

    Attributes:
        partition_id: which partition this is; addresses all of the client's randomness.
        features: (n, *shape) on the device and in the number type of the run.
        labels: (n,) 0.0 or 1.0, likewise.
        positives: indices of the rows of that class.
        negatives: likewise.
        held_out: rows of its own that it does not train with, where it reads a file of its own.
    """

    partition_id: int
    features: Tensor
    labels: Tensor
    positives: Indices
    negatives: Indices
    held_out: Site | None = None
    _samplers: dict[Purpose, tuple[Indices, int, int, EpochSampler]] = field(
        default_factory=dict, init=False, repr=False
    )

    @classmethod
    def from_arrays(
        cls,
        partition_id: int,
        features: NDArray[Any],
        labels: NDArray[Any],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Build a site from (n, *shape) features and (n,) labels in {0, 1}.

        On a CPU, features of that number type stay where they are.
        """
        return cls(
            partition_id,
            _as_tensor(features, dtype, device),
            torch.tensor(labels, dtype=dtype, device=device),
            np.flatnonzero(labels == 1),
            np.flatnonzero(labels == 0),
        )

    def __len__(self) -> int:
        return self.labels.shape[0]

    @property
    def class_counts(self) -> tuple[int, int]:
        """The numbers of negatives and of positives."""
        return len(self.negatives), len(self.positives)

    @cached_property
    def everyone(self) -> Indices:
        """(n,) the indices of all rows."""
        return np.arange(len(self))

    def sampler(self, indices: Indices, batch_size: int, seed: int, purpose: Purpose) -> EpochSampler:
        """Mini-batches of some of the rows, addressed by their number.

        While the site and the indices are in memory it is one sampler, which draws an epoch once and not in every
        message.
        """
        kept = self._samplers.get(purpose)
        if kept is None or kept[0] is not indices or kept[1:3] != (batch_size, seed):
            fresh = EpochSampler(indices, batch_size, seed, purpose, self.partition_id)
            kept = self._samplers[purpose] = (indices, batch_size, seed, fresh)
        return kept[3]

    def rows(self, indices: Indices | None) -> Tensor:
        """(len(indices), *shape) the features of some samples, or of all."""
        return self.features if indices is None else _picked(self.features, on_device(indices, self.labels.device))

    def targets(self, indices: Indices | None) -> Tensor:
        """(len(indices),) the labels of some samples, or of all."""
        return self.labels if indices is None else _picked(self.labels, on_device(indices, self.labels.device))

    def samples(self, indices: Indices | None) -> tuple[Tensor, Tensor]:
        """Both."""
        if indices is None:
            return self.features, self.labels
        places = on_device(indices, self.labels.device)
        return _picked(self.features, places), _picked(self.labels, places)


def _picked(values: Tensor, places: Tensor) -> Tensor:
    return values.index_select(0, places)  # values[places] takes two to three times as long


def _as_tensor(array: NDArray[Any], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    if torch.device(device).type != "cpu" or array.dtype != NUMPY_DTYPES[dtype]:
        return torch.tensor(array, dtype=dtype, device=device)
    shared = array.view()
    try:
        shared.setflags(write=True)  # PyTorch has no tensors that are read-only, and warns of arrays that are
    except ValueError:
        return torch.tensor(array, dtype=dtype)
    return torch.from_numpy(shared)
