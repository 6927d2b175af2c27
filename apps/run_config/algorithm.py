"""The types that connect a run config to an algorithm: a row of the registry, and the parsed run config.

The key ``strategy`` selects an `Algorithm`. It names the classes that Flower runs, the data of the nodes (`Sites`) and
the metrics (`Evaluation`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from flwr.app import Context, Message
from torch import Tensor

from apps.run_config.settings import DataSettings, EvaluationSettings, RunSettings, SyntheticSettings
from clients.base import PayloadClient, Site, Trained
from methods.cohort import Cohort
from methods.method import Traits
from payloads.handshake import Scaling, SiteReport
from payloads.record import FloatArray
from payloads.settings import PrivacySettings, Settings, TrainingSettings, kebab
from problems.data import SPARSE_LOGISTIC, DataSpec, Preprocessing, SampleFormat
from problems.data.subgroups import Subgroups
from problems.tallies import Tally
from strategies.base import PayloadStrategy
from vertical.parties import Party

# the run-config table with the parameters of `SPARSE_LOGISTIC`
SYNTHETIC = "synthetic"
# the run-config table of secure sums and differential privacy
PRIVACY = "privacy"
# the name of the handshake, which precedes all rounds, in the log of a node's owner
HANDSHAKE = "handshake"
# a node's part of the run's data: rows (Site), columns of the rows that all nodes share (Party), or columns that are
# not scaled (Cohort)
Held = Site | Party | Cohort


class Sites(Protocol):
    """The data of a run's nodes, and hooks around the work of their clients.

    Attributes:
        hold_columns: Whether the nodes have columns of the same rows. Each node with a file then reads the file in
            every run, and the server needs no data.
        refusals: The exceptions with which a client refuses a request. Their text is sent to the server.
    """

    hold_columns: bool = False
    refusals: tuple[type[Exception], ...] = ()

    def hold(self, config: RunConfig, context: Context, partition: tuple[int, int], scaling: Scaling | None) -> Held:
        """Return a node's part of the run's data.

        Args:
            config: The run config.
            context: The node's context.
            partition: The node's partition id, and the number of partitions.
            scaling: The common scaling of columns, if sites read their own tables.

        Raises:
            ConfigError, DataError: The node config is wrong, or the data cannot be used.
            PolicyError: The party's policy forbids the run.
        """

    def report(self, config: RunConfig, context: Context, partition: tuple[int, int]) -> SiteReport:
        """Return a node's report for the handshake: the node's identity and, if it has rows, their numbers.

        Raises:
            ConfigError, DataError, PolicyError: As for `hold`.
        """

    def model(self, config: RunConfig, site: Held) -> Trained:
        """Return the object that the node's client trains: a model, or for example a minimax problem.

        Args:
            config: The run config.
            site: The node's data, from `hold`.
        """

    def audit(
        self, config: RunConfig, event: str, context: Context, message: Message
    ) -> AbstractContextManager[dict[str, Any]]:
        """Add a line about the enclosed work to the owner's log, if the owner keeps a log.

        Args:
            config: The run config.
            event: The name of the request: `HANDSHAKE`, the name of an additional exchange, or "segment" for a round's
                main exchange.
            context: The node's context.
            message: The message.

        Yields:
            The entries of the line by name. The enclosed work fills the dictionary.
        """
        return nullcontext({})

    def begin(self, client: PayloadClient[Any], facts: dict[str, Any]) -> None:
        """Prepare a client that is about to answer a message.

        Args:
            client: The client.
            facts: The entries that `audit` yielded. The client adds its own entries.
        """
        return

    def end(
        self, client: PayloadClient[Any], context: Context, config: Mapping[str, Any], local: Mapping[str, Any]
    ) -> None:
        """Finish the work of a client that has answered a message without an error.

        Args:
            client: The client.
            context: The node's context.
            config: The scalars of the message that the client has answered.
            local: The paths in the message, see `apps.sites.shared_disk`.
        """
        return


class Evaluator(ABC):
    """A function that computes a run's metrics from the flat arrays of the run's model.

    Attributes:
        summary: A description of the model, for the log.
        layout: Names and shapes of the parts of the flat model, if it has parts.
        num_frozen: The number of frozen entries at the end of the model's buffers.
        frozen: The names of these entries in a model file.
        at_sites: The names of the entries that each site keeps, so the run's model files lack them.
        columns: The encoding of raw rows as the model's features, if the rows come from a table.
        sample_format: The form of the samples in their files, if the samples have labels.
        tallies: The histograms of the newest model's scores by finding; of a single label under the name "". Empty if
            there are no scores, or if no figure needs them.
        notes: Further lines about the data, for the log.
        groups: The columns of ``subgroups``, with their values.
    """

    summary: str
    layout: tuple[tuple[str, tuple[int, ...]], ...] = ()
    num_frozen: int = 0
    frozen: frozenset[str] = frozenset()
    at_sites: frozenset[str] = frozenset()
    columns: Preprocessing | None = None
    sample_format: SampleFormat | None = None
    tallies: Mapping[str, Tally] = MappingProxyType({})
    notes: tuple[str, ...] = ()
    groups: tuple[Subgroups, ...] = ()

    @abstractmethod
    def start(self) -> list[FloatArray]:
        """Return the run's starting point."""

    def start_from(self, tensors: Mapping[str, Tensor]) -> list[FloatArray]:
        """Return the starting point with the entries of a model file. Missing entries start as in `start`.

        Args:
            tensors: The entries, with the names and shapes of `name_arrays`.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot start from a file")

    @abstractmethod
    def __call__(self, arrays: Sequence[FloatArray]) -> dict[str, float]:
        """Return the metrics of a model, by name.

        Args:
            arrays: The flat arrays of the model.

        Raises:
            ValueError: The run has diverged.
        """

    def relate(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Return the clients' metrics together with the metrics that the server derives from them.

        Raises:
            ValueError: The run has diverged.
        """
        return dict(measured)

    @abstractmethod
    def name_arrays(self, arrays: Sequence[FloatArray]) -> dict[str, Any]:
        """Return the entries of the model file, by name.

        Args:
            arrays: The flat arrays that the strategy's ``output``, or one of its views, returned for the last model.
        """


class Evaluation(Protocol):
    """A factory of evaluators, and a check of the run config."""

    def __call__(self, config: RunConfig, num_clients: int, /, *, pooled: bool = True) -> Evaluator:
        """Return the evaluator of a new run.

        Args:
            config: The run config.
            num_clients: The number of clients.
            pooled: Whether the clients' data follow from the run config, so the server can load them too.

        Raises:
            DataError: The data cannot be loaded.
        """

    def check(self, strategy: str, spec: DataSpec, settings: Settings, /) -> None:
        """Refuse a run config that does not fit the algorithm, although each key is valid by itself.

        Args:
            strategy: The strategy's name.
            spec: The data.
            settings: The settings of the algorithm's table.

        Raises:
            ConfigError: The run config does not fit.
        """


@dataclass(frozen=True)
class Algorithm:
    """A row of the registry.

    Attributes:
        strategy, client: The server half and the client half.
        description: One line for ``florilegium list``.
        sites: The data and the hooks of its nodes.
        evaluation: The factory of its evaluators.
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
        """The algorithm's properties, apart from its computations."""
        return self.strategy.traits

    @property
    def table(self) -> str:
        """The run-config table of the algorithm's settings; "" if it has none."""
        return self.traits.table

    @property
    def losses(self) -> tuple[str, ...]:
        """The losses that the algorithm can minimise."""
        return self.traits.losses


@dataclass(frozen=True)
class RunConfig:
    """A complete and valid run config. Its ``model``, ``dtype`` and ``loss`` are never "auto".

    Attributes:
        run: The keys of the run's parts and results.
        training: The training keys that all algorithms share.
        data: The keys of the data.
        family: The keys of the algorithm's own table.
        algorithm: The registry's row of the strategy.
        privacy: The keys of secure sums and differential privacy.
        evaluation: The keys of metrics, selection and figures.
        without_effect: The keys, as ``key=value``, that differ from their defaults but have no effect.
        note: The reason for a default that depends on the network, for the log. "": no such default.
    """

    run: RunSettings
    training: TrainingSettings
    data: DataSpec
    family: Settings
    algorithm: Algorithm = field(compare=False)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    without_effect: tuple[str, ...] = field(default=(), compare=False)
    note: str = field(default="", compare=False)

    @property
    def warning(self) -> str:
        """A sentence about keys without effect. Empty if all keys have an effect."""
        pairs = ", ".join(self.without_effect)
        return f"no effect with strategy {self.run.strategy!r}: {pairs}" if pairs else ""

    def defaults(self) -> dict[str, Any]:
        """Return the defaults of the keys that are in no table."""
        data = {kebab(name): getattr(DataSpec, name, None) for name in DataSettings.model_fields}
        parts = (self.run, self.training, self.evaluation)
        return {kebab(name): field.default for part in parts for name, field in type(part).model_fields.items()} | data

    def resolve(self) -> dict[str, Any]:
        """Return the nested config with every default filled in, for ``config.toml``."""
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
