"""`Site`: one client's data in memory, with its mini-batches."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from jaxtyping import Float, Int64, Real
from torch import Tensor

from problems.augmentation import Augmentation
from problems.data.findings import Findings
from problems.data.image_rows import ImageRows
from problems.data.mapped import allocate
from problems.data.samples import Samples
from problems.data.times import Periods
from problems.image_tensor import ImageTensor, read_all, read_rows
from problems.models import NUMPY_DTYPES
from problems.objectives.hazard import encode
from problems.randomness import Purpose
from problems.sampling import EpochSampler, Indices, on_device


@dataclass(frozen=True, eq=False)
class Site:
    """A client's identity and its data, on the run's device, or images in files.

    Attributes:
        partition_id: The partition's number, a key of all random streams of the client.
        features: The features, on the device and in the number type of the run; an `ImageTensor` of images that are
            larger than the cache.
        labels: 0.0 or 1.0, or numbers, on the same device and of the same number type.
        positives, negatives: The indices of the rows of each class. If labels are numbers, all rows are negatives.
        held_out: The rows on which a client with its own file evaluates models, and does not train. None: no such rows.
        test: The client's test rows, if the held-out rows are validation rows.
        least_cell: The smallest count of rows, other than 0, that may leave a client with its own file.
        subgroups: Of held-out rows, the group of each row in each column of ``subgroups``. None: no such columns.
        columns: The indices of the features of each column. Empty: each feature is a column.
        offsets: The numbers that are added to the rows' scores, on the same device and of the same number type. None:
            no offsets.
        numeric: Whether the labels are numbers.
        names: The names of the features of a site's own table; () if they are unknown.
        periods: The intervals in which the rows are observed. None: rows have no times.
        findings: The rows' findings; see `problems.data.Samples`. None: each row has one label.
        augmentation: The random changes of the images in training batches. None: no changes.

    Example:
        >>> site = Site.from_arrays(0, np.zeros((3, 2)), np.array([0, 1, 0]))
        >>> site.positives.tolist(), site.negatives.tolist()
        ([1], [0, 2])
    """

    partition_id: int
    features: Float[Tensor, "n *shape"]
    labels: Float[Tensor, "n"]
    positives: Int64[np.ndarray, "positives"]
    negatives: Int64[np.ndarray, "negatives"]
    held_out: "Site | None" = None
    test: "Site | None" = None
    least_cell: int = 1
    subgroups: Int64[np.ndarray, "n c"] | None = None
    columns: tuple[tuple[int, ...], ...] = ()
    offsets: Float[Tensor, "n"] | None = None
    numeric: bool = False
    names: tuple[str, ...] = ()
    periods: Periods | None = None
    findings: Findings | None = None
    augmentation: Augmentation | None = None
    _samplers: dict[Purpose, tuple[Indices, int, int, EpochSampler]] = field(
        default_factory=dict, init=False, repr=False
    )

    @classmethod
    def from_arrays(
        cls,
        partition_id: int,
        features: Real[np.ndarray, "n *shape"] | ImageRows,
        labels: Real[np.ndarray, "n"],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        offsets: Real[np.ndarray, "n"] | None = None,
        numeric: bool = False,
    ) -> Self:
        """Build a site.

        Args:
            partition_id: The partition's number.
            features: The features; on a CPU not copied if they already have this ``dtype``.
            labels: 0 or 1, or numbers.
            dtype: The type of the tensors.
            device: The device of the tensors.
            offsets: The numbers that are added to the rows' scores. None: no offsets.
            numeric: Whether the labels are numbers.

        Raises:
            DataError: See `problems.data.mapped.allocate`.
        """
        return cls(
            partition_id,
            as_tensor(features, dtype, device),
            torch.tensor(labels, dtype=dtype, device=device),
            np.flatnonzero(labels == 1) if not numeric else np.arange(0),
            np.flatnonzero(labels == 0) if not numeric else np.arange(len(labels)),
            offsets=None if offsets is None else torch.tensor(offsets, dtype=dtype, device=device),
            numeric=numeric,
        )

    @classmethod
    def of_samples(
        cls, partition_id: int, samples: Samples, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> Self:
        """Build a site with the features, labels and offsets of samples; see `from_arrays`."""
        arrays = samples.features, samples.labels
        offsets, numeric = samples.offsets, samples.numeric
        site = cls.from_arrays(partition_id, *arrays, dtype=dtype, device=device, offsets=offsets, numeric=numeric)
        if samples.periods is None and samples.findings is None:
            return site
        return replace(site, periods=samples.periods, findings=samples.findings)

    def __len__(self) -> int:
        return self.labels.shape[0]

    @property
    def class_counts(self) -> tuple[int, int]:
        """The numbers of negatives and of positives; (rows, 0) if the labels are numbers."""
        return len(self.negatives), len(self.positives)

    @cached_property
    def everyone(self) -> Int64[np.ndarray, "n"]:
        """The indices of all rows, ascending; for `of_finding` of the rows in which the finding is known."""
        return np.sort(np.concatenate([self.positives, self.negatives]), kind="stable")  # merges two sorted parts

    def of_finding(self, index: int) -> Self:
        """Return the site with a single label, one of its findings. The features are shared.

        Args:
            index: The finding's number.
        """
        assert self.findings is not None
        values = self.findings.values[:, index]
        labels = torch.tensor(values, dtype=self.labels.dtype, device=self.labels.device)
        positives, negatives = np.flatnonzero(values == 1), np.flatnonzero(values == 0)
        return replace(self, labels=labels, positives=positives, negatives=negatives, findings=None)

    def is_one_batch(self, batch_size: int) -> bool:
        """Return whether every batch is the whole site, without augmentation.

        Args:
            batch_size: The number of rows in a batch. 0: all rows.
        """
        return self.augmentation is None and not 0 < batch_size < len(self)

    def sampler(
        self, indices: Int64[np.ndarray, "some"], batch_size: int, seed: int, purpose: Purpose, end: int | None = None
    ) -> EpochSampler:
        """Return mini-batches of some of the rows.

        Samplers are cached: equal arguments and the same object ``indices`` return the same sampler, so an epoch is
        drawn once and not in every message. Images of the next batches are read ahead.

        Args:
            indices: The indices of the rows.
            batch_size: The number of rows in a batch. 0: all rows.
            seed: The run's seed.
            purpose: The purpose of the batches.
            end: The number after the round's last batch. None: unknown.
        """
        cached = self._samplers.get(purpose)
        if cached is None or cached[0] is not indices or cached[1:3] != (batch_size, seed):
            fresh = EpochSampler(indices, batch_size, seed, purpose, self.partition_id)
            cached = self._samplers[purpose] = (indices, batch_size, seed, fresh)
        if isinstance(self.features, ImageTensor):
            cached[3].announce(self.features.read_ahead, end)
        return cached[3]

    def rows(self, indices: Int64[np.ndarray, "b"]) -> Float[Tensor, "b *shape"]:
        """Return the features of some samples, after augmentation.

        Args:
            indices: The indices of the rows.
        """
        return self._augment(read_rows(self.features, indices), indices)

    @cached_property
    def outcomes(self) -> Float[Tensor, "n *findings"]:
        """The labels; of rows with times, the codes of `problems.objectives.hazard.encode`; or the findings (n, l)."""
        if self.findings is not None:
            return torch.tensor(self.findings.values, dtype=self.labels.dtype, device=self.labels.device)
        return self.labels if self.periods is None else encode(self.labels, self.periods)

    @property
    def batch(self) -> tuple[Tensor, ...]:
        """The features and the `outcomes` of all samples and, if the site has offsets, the offsets."""
        return (read_all(self.features), *self._outputs)

    @property
    def _outputs(self) -> tuple[Tensor, ...]:
        return (self.outcomes,) if self.offsets is None else (self.outcomes, self.offsets)

    def samples(self, indices: Int64[np.ndarray, "b"]) -> tuple[Tensor, ...]:
        """Return the `rows` and the `outcomes` of some samples and, if the site has offsets, their offsets.

        Args:
            indices: The indices of the rows.
        """
        rows = on_device(indices, self.labels.device)
        return (self.rows(indices), *(part.index_select(0, rows) for part in self._outputs))

    def _augment(
        self, features: Float[Tensor, "b *shape"], indices: Int64[np.ndarray, "b"]
    ) -> Float[Tensor, "b *shape"]:
        return features if self.augmentation is None else self.augmentation(features, indices)


def as_tensor(
    array: Real[np.ndarray, "n *shape"] | ImageRows, dtype: torch.dtype, device: torch.device | str
) -> Float[Tensor, "n *shape"]:
    """Return an array as a tensor, and `ImageRows` as an `ImageTensor`.

    On a CPU an array is not copied if its type is right and its memory is writable.

    Args:
        array: The array, which this project's code never changes.
        dtype: The type of the tensor.
        device: The device of the tensor.

    Raises:
        DataError: See `problems.data.mapped.allocate`.
    """
    if isinstance(array, ImageRows):
        return ImageTensor(array, dtype, device)
    if torch.device(device).type != "cpu":
        return torch.tensor(array, dtype=dtype, device=device)
    shared = array.view()
    with suppress(ValueError):
        shared.setflags(write=True)  # PyTorch has no read-only tensors, and warns of read-only arrays
    if not shared.flags.writeable or shared.dtype != NUMPY_DTYPES[dtype]:
        shared = allocate(array.shape, NUMPY_DTYPES[dtype])
        with np.errstate(over="ignore"):
            np.copyto(shared, array, casting="unsafe")
    return torch.from_numpy(shared)
