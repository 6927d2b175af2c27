"""The ClientApp: turns messages into calls of a ``NumPyClient`` and its answers into replies."""

import platform
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from operator import is_
from typing import Any, Self

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from apps.config import ConfigError, RunConfig, Scalar, parse_run_config
from apps.run_config.algorithm import HANDSHAKE, Held
from apps.sites import resources
from apps.sites.fingerprints import add_fingerprint
from apps.sites.ledger import EVALUATIONS, HANDSHAKES, count_answer, one_at_a_time
from apps.sites.policy import check_demands
from apps.sites.sample_privacy import count_pools, guard_samples, keep_ledger
from apps.sites.secure_sums import answer_question, mask_reply
from apps.sites.shared_disk import read_paths
from apps.sites.site_config import at_site
from apps.sites.state_store import StateStore
from apps.sites.withheld import withhold
from clients.base import Fitted, PayloadClient, Site, score
from methods.private import BudgetError
from payloads.flower_internals import fill, values_of
from payloads.handshake import REFUSAL, Scaling, SiteReport
from payloads.held_out import ScoreEdges
from payloads.record import FloatArray, Payload, PayloadError, not_finite
from payloads.secure_sum import Present
from payloads.settings import NORM_BOUND
from payloads.wire import (
    ARRAYS,
    CONFIG,
    METRICS,
    NUM_EXAMPLES,
    PAYLOAD,
    PHASE,
    PRESENT,
    ROUND,
    SCALING,
    STAGE,
    STATE_ROUND,
    STATE_SINCE,
    check_records,
    content,
    digest,
    find,
    model_arrays,
    model_record,
    need,
)
from privacy.secure_sum import SecureSumError, fewest_in_sum
from problems.errors import NOTHING
from problems.models.vectors import bound_length

STATE = "client-state"
# a second record: the round in which the state was made
MADE = "client-state-made"

app = ClientApp()


# the newest run config and its parsed form
_newest: list[tuple[dict[str, Scalar], RunConfig]] = []


@lru_cache(maxsize=16)
def _parse(items: tuple[tuple[str, Scalar], ...], types: tuple[type, ...]) -> RunConfig:
    return parse_run_config(dict(items))


def run_config(context: Context) -> RunConfig:
    """The context's run config, parsed once per process and configuration."""
    flat = context.run_config
    newest = _newest[0] if _newest else None
    # copies of a run config share its values, and comparing those is several times as fast as hashing all
    if newest is not None and [*newest[0]] == [*flat] and all(map(is_, newest[0].values(), flat.values())):
        return newest[1]
    # The types are part of the cache key: True equals 1, but only one of the two is valid for a run-config key.
    config = _parse(tuple(flat.items()), tuple(map(type, flat.values())))
    _newest[:] = [(dict(flat), config)]
    return config


def node_place(context: Context) -> tuple[int, int]:
    """(partition id, number of partitions) from the node config.

    Raises:
        ConfigError: they are missing, not integers, or out of range.
    """
    way_out = "start the SuperNode with --node-config 'partition-id=0 num-partitions=3'"
    try:
        place = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    except KeyError as error:
        got = f"{', '.join(context.node_config) or NOTHING}, without {error}"
        raise ConfigError("node config", got=got, allowed="partition-id and num-partitions", hint=way_out) from None
    except ValueError:
        got = ", ".join(f"{key}={context.node_config[key]!r}" for key in ("partition-id", "num-partitions"))
        raise ConfigError("node config", got=got, allowed="integers", hint=way_out) from None
    if not 0 <= place[0] < place[1]:
        allowed = f"0 to num-partitions - 1 = {place[1] - 1}"
        raise ConfigError("partition-id", got=place[0], allowed=allowed, hint="give another --node-config")
    return place


def site_of(context: Context, config: RunConfig, scaling: Scaling | None = None) -> Held:
    """Return what a node holds of the run's data, and limit the threads of its process.

    Args:
        scaling: how the columns are scaled, if the server has sent it; see `Sites.hold`.
    """
    resources.hold_threads(config.training)
    return config.algorithm.sites.hold(config, context, node_place(context), scaling)


def report_of(context: Context, config: RunConfig) -> SiteReport:
    """A node's report for the handshake; see `Sites.report`."""
    resources.hold_threads(config.training)
    return config.algorithm.sites.report(config, context, node_place(context))


def make_client(context: Context, config: RunConfig, scaling: Scaling | None = None) -> PayloadClient[Any]:
    """Make this node's client for the run's algorithm, on data and a model that the process caches.

    Raises:
        ConfigError, DataError, PolicyError: as for `Sites.hold`.
    """
    site = site_of(context, config, scaling)
    model = config.algorithm.sites.model(config, site)
    return config.algorithm.client(site, model, config.training, config.family)  # type: ignore[arg-type]


@app.query()
def query(message: Message, context: Context) -> Message:
    """Answer the handshake: who this site is and what it holds, or why it cannot take part.

    Returns:
        The site's report with its device and the versions of its libraries; or, under `REFUSAL`, an error's text alone.
    """
    try:
        context = at_site(context)
        config = run_config(context)
        check_demands(context.node_config, config)
        count_answer(context.node_config, HANDSHAKES)
        with (
            withhold(config, context.node_config),
            config.algorithm.sites.audit(config, HANDSHAKE, context, message),
        ):
            report = report_of(context, config)
            report = add_fingerprint(report, config, context.node_config, read_paths(message.content))
        device = resources.device_of(config.training).type
    except (ValueError, OSError) as error:
        return _refusal(error, message)
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    config_record = ConfigRecord({"device": device, **versions})
    return Message(content(config=config_record, payload=report.to_record()), reply_to=message)


def _refusal(error: Exception, message: Message) -> Message:
    return Message(content(config=ConfigRecord({REFUSAL: str(error)})), reply_to=message)


@lru_cache(maxsize=2)
def _decode(kind: type[Payload], fields: tuple[tuple[str, Any], ...], dim: int) -> Any:
    """A payload from its fields; clients that share a process share its read-only arrays."""
    return kind.from_record(ConfigRecord(dict(fields)), {"d": dim})


@app.train()
def train(message: Message, context: Context) -> Message:
    """Call the client's ``fit`` once, and keep its memory.

    Returns:
        The reply of `answer`; from a party that refuses, its reason alone. Flower itself reports other errors.
    """
    asked = need(message.content, CONFIG, ConfigRecord)
    phase = str(asked.get(PHASE, "segment"))
    context = at_site(context)
    config = run_config(context)
    check_demands(context.node_config, config)
    if STAGE in asked:
        return Message(answer_question(message.content, context, config, node_place(context)[0]), reply_to=message)
    sites = config.algorithm.sites
    try:
        with (
            withhold(config, context.node_config),
            sites.audit(config, phase, context, message) as facts,
            one_at_a_time(context, node_place(context)[0]) if config.privacy.epsilon else nullcontext(),
        ):
            request = Request.of(message.content)
            work = receive(request, context, facts)
            with resources.turn(work.client.model):
                try:
                    fitted = work.client.fit(request.parameters, request.config)
                finally:
                    keep_ledger(work.client, context)
            records = answer(work, fitted, context)
            sites.end(work.client, context, request.config, request.local)
            return Message(records, reply_to=message)
    except sites.refusals as error:
        return _refusal(error, message)


@dataclass(frozen=True)
class Request:
    """A message's content, which clients may share; ``extras``: the payload's fields."""

    config: dict[str, Any]
    parameters: list[FloatArray]
    extras: tuple[tuple[str, Any], ...] | None
    local: dict[str, Any]
    scaling: Scaling | None
    present: Present | None
    question: bytes

    @classmethod
    def of(cls, records: RecordDict, kind: str = MessageType.TRAIN) -> Self:
        """Read a message's records.

        Args:
            records: the message's content.
            kind: the message's type; with the content it makes the hash ``question``, which a secure sum needs.

        Raises:
            PayloadError: it has no model or an unknown record, or an array or the scaling is malformed. The payload is
                read later.
        """
        check_records(records)
        extras, scaling, present = (find(records, name, ConfigRecord) for name in (PAYLOAD, SCALING, PRESENT))
        return cls(
            dict(find(records, CONFIG, ConfigRecord) or {}),
            model_arrays(need(records, ARRAYS, ArrayRecord)),
            None if extras is None else tuple(extras.items()),
            read_paths(records),
            None if scaling is None else Scaling.from_record(scaling),
            None if present is None else Present.from_record(present),
            b"" if present is None else digest(records, kind),
        )


@dataclass(frozen=True)
class Work:
    """What a request asks of a client, which has its inbox and its memory: to ``fit``.

    Attributes:
        recalled, made: the memory it starts from and the round in which that was made; (None, 0): it has none.
    """

    client: PayloadClient[Any]
    run: RunConfig
    request: Request
    store: StateStore | None
    recalled: Payload | None
    made: int


def receive(request: Request, context: Context, facts: dict[str, Any]) -> Work:
    """Make the node's client, and give it the request's payload and the node's memory; ``facts``: see `Sites.begin`.

    Raises:
        ConfigError: the memory on the disk is damaged.
        PayloadError: the request's payload does not fit the algorithm.
    """
    run, config = run_config(context), request.config
    client = make_client(context, run, request.scaling)
    guard_samples(client, run, context)
    count_pools(client, run, context)
    if request.present is not None:
        client.summed = fewest_in_sum(len(set(request.present.places.tolist())), run.privacy.secure_threshold)
    run.algorithm.sites.begin(client, facts)
    kind: Any = client.down
    if request.extras is not None and kind is not None:
        client.inbox = _decode(kind, request.extras, len(request.parameters[0]))
    store = StateStore.of(context, config, request.local, client.site.partition_id)
    made = 0
    if client.memory is not None:
        since = int(config.get(STATE_SINCE, 0))
        client.state, made = recall(client, context, store, int(config[ROUND]), since)
    return Work(client, run, request, store, client.state, made)


def answer(work: Work, fitted: Fitted, context: Context) -> RecordDict:
    """Make the reply, and keep the client's new memory in the context and, if there is a store, on the disk.

    Args:
        fitted: the model, number of samples and metrics that ``fit`` returned; a model without arrays is not sent.
    """
    client, server_round = work.client, int(work.request.config[ROUND])
    arrays, num_examples, metrics = fitted
    scalars: dict[str, Any] = {NUM_EXAMPLES: num_examples, ROUND: server_round, **metrics}
    if client.memory is not None and client.state is not None:
        scalars[STATE_ROUND] = work.made
        if client.state is not work.recalled:
            _keep_memory(work, arrays, context, server_round)
    if work.run.privacy.secure_sum:
        steps = [new - old for new, old in zip(arrays, work.request.parameters, strict=False)]
        if steps and client.training.aggregation == NORM_BOUND:  # the server sees no single step
            steps[0] = bound_length(steps[0], client.training.norm_bound)
        masked = _mask(steps, client.outbox, len(client.site), work.request, context, work.run)
        return content(payload=masked, metrics=scalars)
    return content(
        arrays=model_record(arrays) if arrays else None,
        payload=client.outbox and client.outbox.to_record(),
        metrics=scalars,
    )


def _keep_memory(work: Work, arrays: list[FloatArray], context: Context, server_round: int) -> None:
    """Keep a client's new memory, unless the memory or the reply is not finite.

    The server refuses such a reply, and the next round must not start from such a memory. In a secure sum the client
    then keeps the former memory as one of this round: the round of its memory must not reveal that it diverged.
    """
    finite, kept = _finite(work.client.state, arrays), values_of(context.state)
    if finite:
        kept[STATE] = work.client.state.to_record()
        if work.store is not None:
            work.store.save(server_round, work.client.state)
    elif work.run.privacy.secure_sum:
        kept.pop(STATE, None)
        kept.update({} if work.recalled is None else {STATE: work.recalled.to_record()})
    if finite or work.run.privacy.secure_sum:
        kept[MADE] = fill(ConfigRecord, {ROUND: server_round})


def _mask(
    steps: list[Any],
    payload: Payload | None,
    samples: int,
    request: Request,
    context: Context,
    config: RunConfig,
    *,
    altered: bool = False,
) -> ConfigRecord:
    asked, place = (request.config, request.present, request.question), node_place(context)[0]
    return mask_reply(steps, payload, samples, *asked, context, config, place, altered=altered)


def _finite(state: Payload, arrays: list[FloatArray]) -> bool:
    """Whether a client's memory and model are finite."""
    kept = [value for value in state.arrays().values() if value.dtype.kind == "f"]
    return not any(map(not_finite, [*arrays, *kept]))


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure a model on this site's rows.

    Returns:
        What the client's ``evaluate`` finds; if the message names a phase, the held-out rows' scores, counted by bin.
    """
    context = at_site(context)
    config = run_config(context)
    check_demands(context.node_config, config)
    request = Request.of(message.content, MessageType.EVALUATE)
    count_answer(context.node_config, EVALUATIONS)
    with withhold(config, context.node_config):
        found = _scores(context, request) if PHASE in request.config else _losses(context, request)
    return Message(found, reply_to=message)


def _losses(context: Context, request: Request) -> RecordDict:
    config = run_config(context)
    privacy = config.privacy
    if privacy.secure_sum:
        raise SecureSumError("the server asked for values outside of a secure sum")
    if privacy.epsilon:
        raise BudgetError(
            "privacy.epsilon",
            got="a request for the loss of training rows",
            allowed="none, since its budget is for training alone",
            hint="evaluate on held-out rows",
        )
    client = make_client(context, config, request.scaling)
    loss, num_examples, metrics = client.evaluate(request.parameters, request.config)
    numbers = {NUM_EXAMPLES: num_examples, "loss": loss, **metrics}
    return RecordDict({METRICS: MetricRecord(numbers)})  # type: ignore[arg-type]


def _scores(context: Context, request: Request) -> RecordDict:
    config = run_config(context)
    site = site_of(context, config, request.scaling)
    assert isinstance(site, Site)
    asked = None if request.extras is None else _decode(ScoreEdges, request.extras, 0).check_order()
    if asked is not None and config.privacy.secure_sum:
        raise SecureSumError("the server chose the bins of the scores, allowed: the fixed bins in a secure sum")
    model = resources.skeleton(config, tuple(site.features.shape[1:]))
    summed = bool(config.privacy.secure_sum)
    counts, diverged = score(model, request.parameters, site, asked, request.config[PHASE], summed=summed)
    metrics = {NUM_EXAMPLES: int(counts.negatives.sum() + counts.positives.sum()), ROUND: request.config[ROUND]}
    payload = _mask([], counts, 0, request, context, config, altered=diverged) if summed else counts.to_record()
    return content(payload=payload, metrics=metrics)


def recall(
    client: PayloadClient[Any], context: Context, store: StateStore | None, server_round: int, since: int
) -> tuple[Payload | None, int]:
    """Return the client's memory and the round in which it was made, or (None, 0).

    It comes from the context, else from the site's files (in a resumed run or a restarted SuperNode).

    Args:
        server_round: the round under way. Memory of later rounds is ignored, and so is a file of this very round.
        since: memory made before this round is ignored.

    Raises:
        ConfigError: the newest of these files is damaged, or another client's.
    """
    assert client.memory is not None
    kept, made = find(context.state, STATE, ConfigRecord), find(context.state, MADE, ConfigRecord)
    if made is not None and since <= (number := int(made[ROUND])) <= server_round:  # type: ignore[arg-type]
        return None if kept is None else client.memory.from_record(kept), number
    if store is not None:
        try:
            return store.load(client.memory, since, server_round)
        except PayloadError as error:
            got, allowed = f"an unusable client state: {error}", "an undamaged one of this run"
            raise ConfigError("state-dir", got=got, allowed=allowed, hint="remove its file to start anew") from None
    return None, 0
