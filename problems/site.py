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
        partition_id: the partition's number, a key of all random streams of the client.
        features: (n, *shape) on the device and in the number type of the run.
        labels: (n,) 0.0 or 1.0, on the same device and of the same type.
        positives, negatives: the indices of the rows of each class.
        held_out: rows that a client with a file of its own keeps out of training, if any.
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
        """Build a site.

        Args:
            features: (n, *shape); on a CPU not copied if they have this ``dtype`` already.
            labels: (n,) in {0, 1}.
            dtype: of both tensors.
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
        """Return mini-batches of some of the rows.

        The same arguments give the same sampler, so that an epoch is drawn once and not in every message.

        Args:
            indices: (k,) of the rows; "the same" means the same object.
            batch_size: 0 stands for k.
        """
        kept = self._samplers.get(purpose)
        if kept is None or kept[0] is not indices or kept[1:3] != (batch_size, seed):
            fresh = EpochSampler(indices, batch_size, seed, purpose, self.partition_id)
            kept = self._samplers[purpose] = (indices, batch_size, seed, fresh)
        return kept[3]

    # index_select, since features[places] takes two to three times as long

    def rows(self, indices: Indices) -> Tensor:
        """Return the features (b, *shape) of some samples.

        Args:
            indices: (b,) of their rows.
        """
        return self.features.index_select(0, on_device(indices, self.labels.device))

    def samples(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return the features (b, *shape) and the labels (b,) of some samples.

        Args:
            indices: (b,) of their rows.
        """
        places = on_device(indices, self.labels.device)
        return self.features.index_select(0, places), self.labels.index_select(0, places)


def _as_tensor(array: NDArray[Any], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    if torch.device(device).type != "cpu" or array.dtype != NUMPY_DTYPES[dtype]:
        return torch.tensor(array, dtype=dtype, device=device)
    shared = array.view()
    try:
        shared.setflags(write=True)  # PyTorch has no tensors that are read-only, and warns of arrays that are
    except ValueError:
        return torch.tensor(array, dtype=dtype)
    return torch.from_numpy(shared)
