"""What every client of ours is: a Flower ``NumPyClient`` with a typed inbox, outbox and state.

``fit`` and ``evaluate`` keep Flower's signature (model arrays in, ``(arrays, num_examples, metrics)`` out). What an
algorithm exchanges beside the model lies in `inbox` before ``fit`` and in `outbox` after it; what a client keeps
between rounds is `state`. None of it needs Flower's runtime, so a client can be driven by hand:

    client = FedX2Client(site, model, TrainingSettings(), FedXSettings())
    client.inbox = FedXPool(...)
    arrays, num_examples, metrics = client.fit([weights], {"server-round": 1})
    client.outbox.positive_scores
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.common import Scalar
from numpy.typing import NDArray
from torch import Tensor

from payloads.record import FloatArray, Payload
from payloads.settings import Settings, TrainingSettings, refuse_other, settings_of
from payloads.wire import ROUND, ready_to_send
from problems.models import NUMPY_DTYPES, FlatModel
from problems.models.flat import Copy
from problems.objectives.classification import CROSS_ENTROPY, cross_entropy
from problems.randomness import Purpose, seed_sequence
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


class Trained(Protocol):
    """What a client moves: a `FlatModel`, or the oracle of a minimax problem."""

    stochastic: bool
    device: torch.device
    parameters: Tensor

    def load(self, arrays: Sequence[FloatArray]) -> None:
        """Set it to what the server sent."""

    def arrays(self, copy: Copy) -> list[FloatArray]:
        """What is sent back, as copies that ``copy`` makes."""


M = TypeVar("M", bound=Trained)


class PayloadClient(NumPyClient, Generic[M]):
    """Base of all clients. Subclasses name their records, and implement `fit` and `evaluate`."""

    down: ClassVar[type[Payload] | None] = None
    up: ClassVar[type[Payload] | None] = None
    memory: ClassVar[type[Payload] | None] = None
    # what it sends in exchanges before a round's own, by their names
    phases: ClassVar[dict[str, type[Payload]]] = {}
    settings_type: ClassVar[type[Settings]] = Settings
    settings: Any
    default_loss: ClassVar[str] = CROSS_ENTROPY

    def __init__(self, site: Site, model: M, training: TrainingSettings, settings: Settings | None = None) -> None:
        self.site = site
        self.model = model
        self.training = training
        self.settings = settings_of(self, self.settings_type, settings)
        self.loss = self.default_loss if training.loss == "auto" else training.loss
        # exchanged beside the model
        self.inbox: Any = None
        self.outbox: Any = None
        # kept between rounds
        self.state: Any = None

    def begin(self, parameters: list[FloatArray], config: dict[str, Scalar]) -> int:
        """Load the model, seed torch for this (client, round), clear the outbox; returns the round.

        Raises:
            TypeError: the inbox or the state holds another algorithm's record.
        """
        refuse_other(self, self.down, self.inbox)
        refuse_other(self, self.memory, self.state)
        server_round = int(config[ROUND])
        self.model.load(parameters)
        self.outbox = None
        if self.model.stochastic:
            self.seed_torch(server_round)
        return server_round

    def fitted(self) -> tuple[list[FloatArray], int, dict[str, Scalar]]:
        """What ``fit`` returns: a read-only copy of the model as it stands, the number of samples, no metrics."""
        return self.model.arrays(ready_to_send), len(self.site), {}

    def seed_torch(self, server_round: int) -> None:
        """Seed torch's own generators (dropout) for this client and round."""
        sequence = seed_sequence(self.training.seed, Purpose.TORCH, self.site.partition_id, server_round)
        seed = int(sequence.generate_state(1, np.uint64)[0])
        # Not torch.manual_seed: before CUDA is up it records a stack trace each time, for later.
        torch.default_generator.manual_seed(seed)
        if self.model.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def local_iterations(self, server_round: int) -> range:
        """The numbers of this round's K local iterations, counted over the whole run."""
        steps = self.training.local_steps
        return range((server_round - 1) * steps, server_round * steps)

    def vector(self, array: FloatArray) -> Tensor:
        """(d,) a received array as a tensor of its own, of the model's number type and on its device."""
        # a copy by NumPy: torch.tensor takes a multiple of the time over a read-only array
        own = torch.from_numpy(np.array(array, NUMPY_DTYPES[self.model.parameters.dtype]))
        return own if self.model.device.type == "cpu" else own.to(self.model.device)

    def vector_or_zeros(self, array: FloatArray | None) -> Tensor:
        """(d,) likewise; zeros where nothing was received."""
        return torch.zeros_like(self.model.parameters) if array is None else self.vector(array)

    def vector_or_none(self, array: FloatArray | None) -> Tensor | None:
        """(d,) likewise; None where nothing was received."""
        return None if array is None else self.vector(array)

    def sampler(self) -> EpochSampler:
        """Mini-batches of ``batch-size`` of all local samples, addressed by the number of the local iteration."""
        return self.site.sampler(self.site.everyone, self.training.batch_size, self.training.seed, Purpose.SAMPLES)


class ScoringClient(PayloadClient[FlatModel]):
    """Base of the clients that train a network's scores."""

    def evaluate(self, parameters: list[FloatArray], config: dict[str, Scalar]) -> tuple[float, int, dict[str, Scalar]]:
        """Cross-entropy and accuracy of a model on the site's own samples."""
        self.model.load(parameters)
        logits = self.model.predict(self.site.features)
        correct = ((logits > 0) == (self.site.labels > 0.5)).double().mean()
        loss = float(cross_entropy(logits, self.site.labels))
        return loss, len(self.site), {"accuracy": float(correct)}
