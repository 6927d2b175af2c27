"""A site's work for one message: the request, the node's client for the run, and the answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Self

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict

from apps.config import ConfigError, RunConfig, Scalar, parse_run_config
from apps.run_config.algorithm import HANDSHAKE, Held
from apps.sites import resources
from apps.sites.settings import SiteConfig
from apps.sites.shared_disk import read_paths
from apps.sites.site_config import at_site
from clients.base import PayloadClient
from payloads.handshake import Scaling, SiteReport, encode_name
from payloads.record import FloatArray, Payload
from payloads.secure_sum import Present
from payloads.wire import (
    ARRAYS,
    CONFIG,
    PAYLOAD,
    PHASE,
    PRESENT,
    SCALING,
    STAGE,
    check_records,
    content,
    digest,
    find,
    model_arrays,
    model_record,
    need,
)
from problems.errors import NOTHING


@lru_cache(maxsize=16)
def _parse(items: tuple[tuple[str, Scalar], ...], types: tuple[type, ...]) -> RunConfig:
    return parse_run_config(dict(items))


def run_config(context: Context) -> RunConfig:
    """Return the parsed run config of a context. Each run config is parsed once per process."""
    flat = context.run_config
    # The types are part of the cache key: True equals 1, but a run-config key accepts only one of the two values.
    return _parse(tuple(flat.items()), tuple(map(type, flat.values())))


def node_partition(context: Context) -> tuple[int, int]:
    """Return the partition id and the number of partitions from the node config.

    Raises:
        ConfigError: One of the two keys is missing, not an integer, or out of range.
    """
    hint = "start the SuperNode with --node-config 'partition-id=0 num-partitions=3'"
    try:
        partition = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    except KeyError as error:
        got = f"{', '.join(context.node_config) or NOTHING}, without {error}"
        raise ConfigError("node config", got=got, allowed="partition-id and num-partitions", hint=hint) from None
    except ValueError:
        got = ", ".join(f"{key}={context.node_config[key]!r}" for key in ("partition-id", "num-partitions"))
        raise ConfigError("node config", got=got, allowed="integers", hint=hint) from None
    if not 0 <= partition[0] < partition[1]:
        allowed = f"0 to num-partitions - 1 = {partition[1] - 1}"
        hint = "set partition-id in --node-config to an allowed number"
        raise ConfigError("partition-id", got=partition[0], allowed=allowed, hint=hint)
    return partition


def site_of(
    context: Context, config: RunConfig, scaling: Scaling | None = None, partition: tuple[int, int] | None = None
) -> Held:
    """Return a node's part of the run's data, and limit the threads of its process.

    Args:
        context: The node's context.
        config: The run config.
        scaling: The common scaling of columns, if the server has sent it; see `Sites.hold`.
        partition: The partition id and the number of partitions. None: the node's own.
    """
    resources.hold_threads(config.training)
    return config.algorithm.sites.hold(config, context, partition or node_partition(context), scaling)


def report_of(context: Context, config: RunConfig) -> SiteReport:
    """Return a node's report for the handshake, with the name that its owner has chosen; see `Sites.report`."""
    resources.hold_threads(config.training)
    report = config.algorithm.sites.report(config, context, node_partition(context))
    name = SiteConfig.of(context.node_config).data.site_name
    return replace(report, name=encode_name(name)) if name else report


def make_client(context: Context, config: RunConfig, scaling: Scaling | None = None) -> PayloadClient[Any]:
    """Make the node's client for the run's algorithm. The process caches the client's data and model.

    Raises:
        ConfigError, DataError, PolicyError: As for `Sites.hold`.
    """
    site = site_of(context, config, scaling)
    model = config.algorithm.sites.model(config, site)
    return config.algorithm.client(site, model, config.training, config.family)  # type: ignore[arg-type]


@lru_cache(maxsize=2)
def decode(kind: type[Payload], fields: tuple[tuple[str, Any], ...], dim: int) -> Any:
    """Return a payload from its fields. Clients in the same process share the payload's read-only arrays."""
    return kind.from_record(ConfigRecord(dict(fields)), {"d": dim})


@dataclass(frozen=True)
class Request:
    """A message's content. Each part is read on first access, which raises an error if the part is malformed.

    Attributes:
        records: The message's content.
        kind: Flower's type of the message.
    """

    records: RecordDict
    kind: str = MessageType.TRAIN

    @cached_property
    def config(self) -> dict[str, Any]:
        """The message's scalars."""
        return dict(find(self.records, CONFIG, ConfigRecord) or {})

    @cached_property
    def parameters(self) -> list[FloatArray]:
        """The server's model."""
        return model_arrays(need(self.records, ARRAYS, ArrayRecord))

    @cached_property
    def extras(self) -> tuple[tuple[str, Any], ...] | None:
        """The fields of the payload (the values in addition to the model). None: no payload."""
        record = find(self.records, PAYLOAD, ConfigRecord)
        return None if record is None else tuple(record.items())

    @cached_property
    def local(self) -> dict[str, Any]:
        """The paths in the message, see `apps.sites.shared_disk`."""
        return read_paths(self.records)

    @cached_property
    def scaling(self) -> Scaling | None:
        """The scaling of the columns, if the server has sent it."""
        record = find(self.records, SCALING, ConfigRecord)
        return None if record is None else Scaling.from_record(record)

    @cached_property
    def present(self) -> Present | None:
        """The members of a secure sum, if the server asks for a term."""
        record = find(self.records, PRESENT, ConfigRecord)
        return None if record is None else Present.from_record(record)

    @cached_property
    def question(self) -> bytes:
        """A hash of the whole message."""
        return digest(self.records, self.kind)

    @property
    def event(self) -> str:
        """The request's name in the owner's log."""
        if self.kind == MessageType.QUERY:
            return HANDSHAKE
        return str(self.config.get(PHASE, "segment" if self.kind == MessageType.TRAIN else self.kind))

    def check(self) -> None:
        """Read all parts except the payload, whose type depends on the algorithm.

        Raises:
            PayloadError: A record is unknown, malformed or missing, or a message outside a simulation contains paths.
        """
        check_records(self.records)
        _ = self.local
        if self.kind == MessageType.QUERY:
            return
        need(self.records, CONFIG, ConfigRecord)
        if STAGE not in self.config:
            _ = self.parameters, self.scaling, self.present


@dataclass(eq=False)
class Work:
    """A request at one site.

    Attributes:
        message: The message with the request.
        request: The message's content.
        context: The node's context, with the effective node config, see `apps.sites.site_config.effective`.
        run: The run config.
        facts: The entries of this request's line in the owner's log.
        summed: The smallest number of clients in the secure sum that contains the answer. 1: no sum, the server sees
            the answer itself.
    """

    message: Message
    request: Request
    context: Context
    run: RunConfig
    facts: dict[str, Any] = field(default_factory=dict)
    summed: int = 1

    @classmethod
    def of(cls, message: Message, context: Context, request: Request | None = None) -> Self:
        """Return the work for a message at a node.

        Args:
            message: The message.
            context: The node's context.
            request: The message's content, if other nodes share it.

        Raises:
            ConfigError: The node config or the run config is wrong.
        """
        site = at_site(context)
        request = request or Request(message.content, message.metadata.message_type)
        return cls(message, request, site, run_config(site))

    @property
    def partition(self) -> int:
        """The node's partition id."""
        return node_partition(self.context)[0]

    @property
    def node(self) -> Mapping[str, Scalar]:
        """The effective node config."""
        return self.context.node_config

    @cached_property
    def client(self) -> PayloadClient[Any]:
        """The node's client, with the request's payload as its inbox. The first access reads the site's data.

        Raises:
            ConfigError, DataError, PolicyError: As for `make_client`.
            PayloadError: The payload does not fit the algorithm.
        """
        client, request = make_client(self.context, self.run, self.request.scaling), self.request
        kind: Any = client.down
        if request.extras is not None and kind is not None:
            client.inbox = decode(kind, request.extras, len(request.parameters[0]))
        return client


@dataclass
class Answer:
    """The values that a site is about to send.

    Attributes:
        arrays: The client's model. A model without arrays is not sent.
        payload: The payload.
        metrics: Numbers by name.
        config: Texts and numbers of the handshake.
        altered: Whether the site has replaced values, such as scores that are not finite.
    """

    arrays: list[FloatArray] = field(default_factory=list)
    payload: Payload | None = None
    metrics: dict[str, Any] | None = None
    config: dict[str, Any] | None = None
    altered: bool = False

    def to_records(self) -> RecordDict:
        """Return the content of the reply."""
        return content(
            arrays=model_record(self.arrays) if self.arrays else None,
            config=None if self.config is None else ConfigRecord(self.config),
            payload=None if self.payload is None else self.payload.to_record(),
            metrics=self.metrics,
        )
