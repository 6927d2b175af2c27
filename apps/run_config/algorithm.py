"""A row of the registry, which a run config's ``strategy`` names, and the parsed run config."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from flwr.app import Context, Message
from torch import Tensor

from apps.run_config.settings import DataSettings, EvaluationSettings, RunSettings, SyntheticSettings
from clients.base import PayloadClient, Site, Trained
from methods.method import Traits
from payloads.handshake import Scaling, SiteReport
from payloads.record import FloatArray
from payloads.settings import PrivacySettings, Settings, TrainingSettings, kebab
from problems.data import SPARSE_LOGISTIC, DataSpec, Preprocessing, SampleFormat
from problems.tallies import Tally
from strategies.base import PayloadStrategy
from vertical.parties import Party

# the run-config table with the parameters of `SPARSE_LOGISTIC`
SYNTHETIC = "synthetic"
# that of what clients keep to themselves
PRIVACY = "privacy"
# the event in a node's log that precedes all rounds
HANDSHAKE = "handshake"
# what a node holds of a run's data: rows, or columns
Held = Site | Party


class Sites(Protocol):
    """What the nodes of a run hold, and hooks around the work of their clients.

    A place is a pair: a node's partition id, and the number of partitions.

    Attributes:
        hold_columns: Whether the nodes hold columns of the same rows. A node with a file reads it in every run,
            and the server needs no data.
        refusals: exceptions by which a client refuses; their text is sent to the server as the answer.
    """

    hold_columns: bool = False
    refusals: tuple[type[Exception], ...] = ()

    def hold(self, config: RunConfig, context: Context, place: tuple[int, int], scaling: Scaling | None) -> Held:
        """Return what a node holds of the run's data.

        Args:
            scaling: of the columns, where sites read tables of their own.

        Raises:
            ConfigError, DataError: the node config is wrong, or the data cannot be used.
            PolicyError: the party's policy forbids the run.
        """

    def report(self, config: RunConfig, context: Context, place: tuple[int, int]) -> SiteReport:
        """Return a node's report for the handshake: who it is and, where it holds rows, how many.

        Raises:
            ConfigError, DataError, PolicyError: as for `hold`.
        """

    def model(self, config: RunConfig, site: Held) -> Trained:
        """Return what the node's client trains.

        Args:
            site: what `hold` returned.
        """

    def audit(
        self, config: RunConfig, event: str, context: Context, message: Message
    ) -> AbstractContextManager[dict[str, Any]]:
        """Add a line about the enclosed work to the owner's log, if there is one.

        Args:
            event: what the node was asked for: `HANDSHAKE`, a phase, or "segment" for a round's own exchange.

        Yields:
            What the line is to say, by name, to be filled by the enclosed work.
        """
        return nullcontext({})

    def begin(self, client: PayloadClient[Any], facts: dict[str, Any]) -> None:
        """Called before a client trains or answers a phase.

        Args:
            facts: what `audit` has yielded, for the client to add to.
        """
        return

    def end(
        self, client: PayloadClient[Any], context: Context, config: Mapping[str, Any], local: Mapping[str, Any]
    ) -> None:
        """Called after a client has trained or answered a phase, if it did not fail.

        Args:
            config: the scalars of the message that it has answered.
            local: the paths that the message brings.
        """
        return


class Evaluator(ABC):
    """Computes a run's metrics from the flat arrays of its model.

    Attributes:
        summary: what is trained, for the log.
        layout: names and shapes of the parts of the flat model, where it has parts.
        columns: how the model's features are made of raw rows, where they come from a table.
        sample_format: what the samples were in their files, where there are samples with labels.
        tally: the scores of the newest model, counted; None where there are none, or nothing is made of them.
        notes: Further lines about the data, for the log.
    """

    summary: str
    layout: tuple[tuple[str, tuple[int, ...]], ...] = ()
    columns: Preprocessing | None = None
    sample_format: SampleFormat | None = None
    tally: Tally | None = None
    notes: tuple[str, ...] = ()

    @abstractmethod
    def start(self) -> list[FloatArray]:
        """The run's starting point."""

    def start_from(self, named: Mapping[str, Tensor]) -> list[FloatArray]:
        """Return the starting point with the entries of a model file; what is missing starts as in `start`.

        Args:
            named: by the names, and in the shapes, of `name_arrays`.
        """
        raise NotImplementedError(f"{type(self).__name__} starts from no file")

    @abstractmethod
    def __call__(self, arrays: Sequence[FloatArray]) -> dict[str, float]:
        """Return the metrics of some arrays, by name.

        Raises:
            ValueError: the run has diverged.
        """

    def relate(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics that the clients measured, with those that the server derives from them.

        Raises:
            ValueError: the run has diverged.
        """
        return dict(measured)

    @abstractmethod
    def name_arrays(self, arrays: Sequence[FloatArray]) -> dict[str, Any]:
        """Return the entries of the model file, by name.

        Args:
            arrays: the flat arrays that the strategy's ``output``, or one of its views, has made of the last model.
        """


class Evaluation(Protocol):
    """How a run's models are measured."""

    def __call__(self, config: RunConfig, num_clients: int, /, *, pooled: bool = True) -> Evaluator:
        """Return the evaluator of a new run.

        Args:
            pooled: whether the clients' data are those of the run config; a vertical run needs none at the server.

        Raises:
            DataError: the data cannot be loaded.
        """

    def check(self, strategy: str, spec: DataSpec, settings: Settings, /) -> None:
        """Refuse a run config that does not fit the algorithm, though each key by itself is valid.

        Args:
            strategy: The strategy's name.
            spec: The data.
            settings: The settings of the algorithm's table.

        Raises:
            ConfigError: It does not fit.
        """


@dataclass(frozen=True)
class Algorithm:
    """A row of the registry.

    Attributes:
        strategy, client: its server half and its client half.
        description: one line for ``florilegium list``.
        sites: what its nodes hold.
        evaluation: how its models are measured.
    """

    strategy: type[PayloadStrategy]
    client: type[PayloadClient[Any]]
    description: str
    sites: Sites
    evaluation: Evaluation

    @property
    def settings(self) -> type[Settings]:
        """The settings class that the table is parsed into."""
        return self.strategy.settings_type

    @property
    def traits(self) -> Traits:
        """The algorithm's properties beside its computations."""
        return self.strategy.traits

    @property
    def table(self) -> str:
        """The run-config table of its own settings, or "" for none."""
        return self.traits.table

    @property
    def losses(self) -> tuple[str, ...]:
        """The losses it can minimise."""
        return self.traits.losses


@dataclass(frozen=True)
class RunConfig:
    """A complete and valid run config; ``model``, ``dtype`` and ``loss`` are never "auto" here."""

    run: RunSettings
    training: TrainingSettings
    data: DataSpec
    family: Settings
    algorithm: Algorithm = field(compare=False)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    # key=value of given keys that change nothing
    without_effect: tuple[str, ...] = field(default=(), compare=False)

    @property
    def warning(self) -> str:
        """A sentence about keys without effect; empty if there are none."""
        named = ", ".join(self.without_effect)
        return f"no effect with strategy {self.run.strategy!r}: {named}" if named else ""

    def defaults(self) -> dict[str, Any]:
        """The defaults of the keys that are in no table."""
        data = {kebab(name): getattr(DataSpec, name, None) for name in DataSettings.model_fields}
        parts = (self.run, self.training, self.evaluation)
        return {kebab(name): field.default for part in parts for name, field in type(part).model_fields.items()} | data

    def resolve(self) -> dict[str, Any]:
        """The nested config with every default filled in, as ``config.toml`` holds it."""
        data = {kebab(name): getattr(self.data, name) for name in DataSettings.model_fields}
        common = (self.run, self.training, self.evaluation)
        flat = {key: value for part in common for key, value in part.model_dump(by_alias=True).items()} | data
        if self.algorithm.strategy.shares_model:
            flat[PRIVACY] = self.privacy.model_dump(by_alias=True)
        if self.algorithm.table:
            flat[self.algorithm.table] = self.family.model_dump(by_alias=True)
        if self.data.dataset == SPARSE_LOGISTIC:
            flat[SYNTHETIC] = {
                kebab(name): getattr(self.data, f"synthetic_{name}") for name in SyntheticSettings.model_fields
            }
        return flat
