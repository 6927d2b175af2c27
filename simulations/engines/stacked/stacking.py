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

    def join(self, tasks: Tasks, network: StackedNetwork) -> Task[Any, Any]:
        """Return one task for all clients, without a site."""
        f: Any = copy(tasks[0].f)
        f.model = network
        return replace(tasks[0], f=f, site=None)  # type: ignore[arg-type]

    def stack(self, carries: Sequence[Any], together: Task[Any, Any]) -> Any:
        """Return one carry for all clients, see `carries.stack`."""
        return stack(carries)

    def unstack(self, carry: Any, tasks: Tasks) -> list[Any]:
        """Return the carry of each client."""
        return unstack(carry, len(tasks))

    def draw(self, task: Task[Any, Any], sites: Sequence[Site], down: Any, draw: Any) -> Iterator[Any]:
        """Return for each local step of the round the batch of all clients, whose tasks differ only in the site.

        Args:
            task: The task of one client.
            sites: The data of all clients.
            down: The payload that all clients have received from the server.
            draw: The method's `ClientHalf.batches`.
        """
        return self.batches([replace(task, site=site) for site in sites], [down] * len(sites), draw)

    @abstractmethod
    def batches(self, tasks: Tasks, downs: Sequence[Any], draw: Any) -> Iterator[Any]:
        """Return for each local step of the round the batch of all clients.

        Args:
            tasks: The clients' tasks.
            downs: The payload that each client has received from the server.
            draw: The method's `ClientHalf.batches`.
        """


def batch_size(site: Site, training: TrainingSettings) -> int:
    """Return the batch size of a client that draws from all its samples."""
    return training.batch_size if 0 < training.batch_size < len(site) else len(site)
