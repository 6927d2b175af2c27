"""What a run config's ``strategy`` stands for, a row of the registry, and the run config that names it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from flwr.app import Context, Message

from apps.run_config.settings import DataSettings, RunSettings, SyntheticSettings
from clients.base import PayloadClient, Site, Trained
from clients.parties import Party
from payloads.handshake import Scaling, SiteReport
from payloads.record import FloatArray
from payloads.settings import Settings, TrainingSettings, kebab
from problems.data import SPARSE_LOGISTIC, Columns, DataSpec
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

    Attributes:
        bring_files: whether a run needs no data at the server, since nodes may have files of their own.
        refusals: the exceptions in which a client says no: their words go to the server as an answer.
    """

    bring_files: bool = False
    refusals: tuple[type[Exception], ...] = ()

    def hold(self, config: RunConfig, context: Context, place: tuple[int, int], scaling: Scaling | None) -> Held:
        """What a node holds of the run's data.

        Args:
            scaling: of columns, where sites read tables of their own.

        Raises:
            ConfigError, DataError: the node config is wrong, or the data cannot be used.
            PolicyError: the party does not take part in such a run.
        """

    def report(self, config: RunConfig, context: Context, place: tuple[int, int]) -> SiteReport:
        """What a node tells of itself before round 1; raises what `hold` does."""

    def model(self, config: RunConfig, site: Held) -> Trained:
        """What the client of a node moves."""

    def audit(
        self, config: RunConfig, event: str, context: Context, message: Message
    ) -> AbstractContextManager[dict[str, Any]]:
        """Where a node's owner keeps a log, a line of what happens inside; it yields the line's facts, to be filled."""
        return nullcontext({})

    def begin(self, client: PayloadClient[Any], facts: dict[str, Any]) -> None:
        """Before a client answers a message; ``facts``: of the line in its owner's log."""
        return

    def end(self, client: PayloadClient[Any], context: Context, config: dict[str, Any]) -> None:
        """After it has answered; ``config``: the message's record of that name."""
        return


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


class Evaluation(Protocol):
    """How a run's models are measured."""

    def __call__(self, config: RunConfig, num_clients: int, /, *, pooled: bool = True) -> Evaluator:
        """The evaluator of a run that begins.

        Args:
            pooled: whether the clients' data are those of the run config; a vertical run needs none at the server.

        Raises:
            DataError: the data cannot be had.
        """


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
