"""The rows of the registry, one module a family: each defines ``ROWS``, run-config name -> `Algorithm`.

A module here is found by being here; `apps.registry` puts the rows together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clients.base import PayloadClient
from payloads.settings import Settings
from strategies.base import PayloadStrategy


@dataclass(frozen=True)
class Algorithm:
    """One row.

    Attributes:
        strategy, client: the two halves.
        table: the run-config table of its own settings, or "" for none.
        losses: the losses it can minimise; the client's ``default_loss`` is what ``loss = "auto"`` means.
        description: one line for ``python -m simulations list``.
        sends: what travels beside the model.
    """

    strategy: type[PayloadStrategy]
    client: type[PayloadClient[Any]]
    table: str
    losses: tuple[str, ...]
    description: str
    sends: str

    @property
    def settings(self) -> type[Settings]:
        """The model that the table is parsed into."""
        return self.strategy.settings_type
