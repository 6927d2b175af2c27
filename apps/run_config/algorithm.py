"""What a run config's ``strategy`` stands for, a row of the registry, and the run config that names it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from flwr.app import Context, Message

from apps.run_config.evaluator import Evaluator
from apps.run_config.settings import DataSettings, RunSettings, SyntheticSettings
from clients.base import PayloadClient, Site, Trained
from clients.parties import Party
from payloads.handshake import Scaling, SiteReport
from payloads.settings import Settings, TrainingSettings, kebab
from problems.data import SPARSE_LOGISTIC, DataSpec
from strategies.base import PayloadStrategy

# the run-config table of what `SPARSE_LOGISTIC` is drawn with
SYNTHETIC = "synthetic"
# the event of a node's log that comes before all messages of rounds
HANDSHAKE = "handshake"
# what a node holds of a run's data: rows, or columns
Held = Site | Party
# (name of the strategy, data, settings of its table): raises a ConfigError where these do not fit it
Check = Callable[[str, DataSpec, Settings], None]


class Sites(Protocol):
    """What the nodes of a run hold, and what surrounds the work of their clients.

    A place is a pair: a node's partition id, and the number of partitions.
    """

    @property
    def bring_files(self) -> bool:
        """Whether a run needs no data at the server, since nodes may have files of their own."""

    @property
    def refusals(self) -> tuple[type[Exception], ...]:
        """The exceptions in which a client says no: their words go to the server as an answer."""

    def hold(self, config: RunConfig, context: Context, place: tuple[int, int], scaling: Scaling | None) -> Held:
        """What a node holds of the run's data; ``scaling``: of columns, where sites read tables of their own."""

    def report(self, config: RunConfig, context: Context, place: tuple[int, int]) -> SiteReport:
        """What a node tells of itself before round 1."""

    def model(self, config: RunConfig, site: Held) -> Trained:
        """What the client of a node moves."""

    def audit(
        self, config: RunConfig, event: str, context: Context, message: Message
    ) -> AbstractContextManager[dict[str, Any]]:
        """Where a node's owner keeps a log, a line of what happens inside; it yields the line's facts, to be filled."""

    def begin(self, client: PayloadClient[Any], facts: dict[str, Any]) -> None:
        """Before a client answers a message; ``facts``: of the line in its owner's log."""

    def end(self, client: PayloadClient[Any], context: Context, config: dict[str, Any]) -> None:
        """After it has answered; ``config``: the message's record of that name."""


class Evaluation(Protocol):
    """How a run's models are measured."""

    def make(self, config: RunConfig, num_clients: int, *, pooled: bool) -> Evaluator:
        """The evaluator of a run; ``pooled``: whether the clients' data are those of the run config."""


@dataclass(frozen=True)
class Algorithm:
    """A row of the registry.

    Attributes:
        strategy, client: the two halves.
        table: the run-config table of its own settings, or "" for none.
        losses: the losses it can minimise; the client's ``default_loss`` is what ``loss = "auto"`` means.
        description: one line for ``python -m simulations list``.
        sends: what travels beside the model.
        sites: what its nodes hold.
        evaluation: how its models are measured.
        check: refuses run configs that do not fit it, where the types of their keys do not.
        objection: why a model must not be clipped or noised on its way, or "".
    """

    strategy: type[PayloadStrategy]
    client: type[PayloadClient[Any]]
    table: str
    losses: tuple[str, ...]
    description: str
    sends: str
    sites: Sites
    evaluation: Evaluation
    check: Check | None = None
    objection: str = ""

    @property
    def settings(self) -> type[Settings]:
        """The model that the table is parsed into."""
        return self.strategy.settings_type


@dataclass(frozen=True)
class RunConfig:
    """A whole run config, valid as a whole: ``model``, ``dtype`` and ``loss`` are never "auto" here."""

    run: RunSettings
    training: TrainingSettings
    data: DataSpec
    family: Settings
    algorithm: Algorithm = field(compare=False)
    # key=value of what was given and changes nothing
    without_effect: tuple[str, ...] = field(default=(), compare=False)

    @property
    def warning(self) -> str:
        """What of it has no effect, in words; empty: nothing."""
        named = ", ".join(self.without_effect)
        return f"no effect with strategy {self.run.strategy!r}: {named}" if named else ""

    def resolved(self) -> dict[str, Any]:
        """Nested, with every default filled in: what ``config.toml`` holds."""
        data = {kebab(name): getattr(self.data, name) for name in DataSettings.model_fields}
        flat = {**self.run.model_dump(by_alias=True), **self.training.model_dump(by_alias=True), **data}
        if self.algorithm.table:
            flat[self.algorithm.table] = self.family.model_dump(by_alias=True)
        if self.data.dataset == SPARSE_LOGISTIC:
            flat[SYNTHETIC] = {
                kebab(name): getattr(self.data, f"synthetic_{name}") for name in SyntheticSettings.model_fields
            }
        return flat
