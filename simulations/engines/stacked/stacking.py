"""The base class of stackings. A stacking adapts a family of methods to computations on many clients at once."""

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
from simulations.engines.stacked.sites import StackedSite

Tasks = Sequence[Task[Any, Any]]


class _Gatherers(threading.local):
    def __init__(self) -> None:
        self.pair = Gatherer(), Gatherer()


class Stacking(ABC):
    """The stacking of the clients of a family of methods.

    Attributes:
        objectives: The classes of the clients' objectives f_i that identify the family.
    """

    objectives: tuple[type[Any], ...]

    def __init__(self) -> None:
        self._own = _Gatherers()

    @property
    def gatherers(self) -> tuple[Gatherer, Gatherer]:
        """Two gatherers of this thread, since a step may use two batches at the same time."""
        return self._own.pair

    @abstractmethod
    def shape(self, task: Task[Any, Any]) -> Hashable:
        """Return the properties that must be equal for all clients of a stack."""

    def join(self, task: Task[Any, Any], sites: Sequence[Site], network: StackedNetwork) -> Task[Any, Any]:
        """Return one task for all clients.

        Args:
            task: The task of one client.
            sites: The data of all clients.
            network: The network with the weights of all clients.
        """
        f: Any = copy(task.f)
        f.model = network
        site: Any = StackedSite(sites, task.training.local_steps, self.gatherers, picked=len(network.shapes) == 1)
        return replace(task, f=f, site=site)

    def stack(self, carries: Sequence[Any], together: Task[Any, Any]) -> Any:
        """Return one carry for all clients, see `carries.stack`."""
        return stack(carries)

    def unstack(self, carry: Any, tasks: Tasks) -> list[Any]:
        """Return the carry of each client."""
        return unstack(carry, len(tasks))

    def batches(self, together: Task[Any, Any], tasks: Tasks, down: Any, draw: Any) -> Iterator[tuple[float, Any]]:
        """Return for each local step of the round its step size, and the batch of all clients.

        Args:
            together: The clients' common task.
            tasks: The clients' tasks.
            down: The payload from the server.
            draw: The method's `ClientHalf.batches`.
        """
        drawn: Iterator[tuple[float, Any]] = draw(together, down)
        return drawn


def batch_size(site: Site, training: TrainingSettings) -> int:
    """Return the batch size of a client that draws from all its samples."""
    return training.batch_size if 0 < training.batch_size < len(site) else len(site)
