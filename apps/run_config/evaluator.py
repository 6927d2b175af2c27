"""What measures a run's models: the server's view of its problem."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from payloads.record import FloatArray
from problems.data import Columns


class Evaluator(ABC):
    """Metrics of flat arrays, by name.

    Attributes:
        summary: what is trained, for the log.
        layout: names and shapes of the parts of the flat model, where it has parts.
        columns: what the model's features are and were scaled by, where they come from a table.
    """

    summary: str
    layout: tuple[tuple[str, tuple[int, ...]], ...] = ()
    columns: Columns | None = None

    @abstractmethod
    def start(self) -> list[FloatArray]:
        """The run's starting point."""

    @abstractmethod
    def __call__(self, arrays: Sequence[FloatArray]) -> dict[str, float]:
        """The metrics of some arrays.

        Raises:
            ValueError: the run has diverged.
        """

    def relate(self, measured: Mapping[str, float]) -> dict[str, float]:
        """What the clients measured, and what the server makes of it.

        Raises:
            ValueError: the run has diverged.
        """
        return dict(measured)

    @abstractmethod
    def named(self, arrays: Sequence[FloatArray]) -> dict[str, Any]:
        """The entries of the model file."""
