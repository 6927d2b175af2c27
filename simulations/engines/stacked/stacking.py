"""The base of stackings, one for each family of methods."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from methods.method import Task
from payloads.settings import TrainingSettings
from problems.site import Site
from simulations.engines.stacked.carries import stack, unstack
from simulations.engines.stacked.gathering import Gatherer
from simulations.engines.stacked.networks import StackedNetwork

Tasks = Sequence[Task[Any, Any]]


class _Gatherers(threading.local):
    def __init__(self) -> None:
        self.pair = Gatherer(), Gatherer()


class Stacking(ABC):
    """The stacking of a family's clients.

    Attributes:
        objectives: The classes of the family's f_i.
    """

    objectives: tuple[type[Any], ...]

    def __init__(self) -> None:
        self._own = _Gatherers()

    @property
    def gatherers(self) -> tuple[Gatherer, Gatherer]:
        """The thread's own gatherers, for two batches of a step at the same time."""
        return self._own.pair

    @abstractmethod
    def shape(self, task: Task[Any, Any]) -> Hashable:
        """Return the properties that must be equal for clients to be stacked."""

    def join(self, tasks: Tasks, network: StackedNetwork) -> Task[Any, Any]:
        """Return the task of all clients, which has no site."""
        f: Any = copy(tasks[0].f)
        f.model = network
        return replace(tasks[0], f=f, site=None)  # type: ignore[arg-type]

    def stack(self, carries: Sequence[Any], together: Task[Any, Any]) -> Any:
        """Return the carry of all clients."""
        return stack(carries)

    def unstack(self, carry: Any, tasks: Tasks) -> list[Any]:
        """Return the carry of each client."""
        return unstack(carry, len(tasks))

    @abstractmethod
    def batches(self, tasks: Tasks, downs: Sequence[Any], draw: Any) -> Iterator[Any]:
        """Return the batch of all clients for each of the round's local steps.

        Args:
            downs: The payload that each client has received.
            draw: The method's `ClientHalf.batches`.
        """


def batch_size(site: Site, training: TrainingSettings) -> int:
    """Return the number of samples in each of a client's batches of all samples."""
    return training.batch_size if 0 < training.batch_size < len(site) else len(site)
